#include "reference/core/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/files.hpp"

namespace accel {
namespace {

std::string last_error() { return std::generic_category().message(errno); }

}  // namespace

class MappedFile::Descriptor {
 public:
  // A pipe that nobody writes into does not hold up the opening.
  explicit Descriptor(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    check_config(descriptor_ >= 0, "{}: cannot be opened: {}", path, last_error());
  }
  ~Descriptor() { close(descriptor_); }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

namespace {

std::size_t size_of(int descriptor, const std::string& path) {
  struct stat status {};
  check_config(fstat(descriptor, &status) == 0, "{}: its size cannot be read: {}", path, last_error());
  check_config(!S_ISDIR(status.st_mode), "{}: is a folder; expected a file", path);
  check_config(S_ISREG(status.st_mode), "{}: is a pipe or a device; expected a regular file, which can be mapped", path);
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  descriptor_ = std::make_unique<const Descriptor>(path_);
  const auto size = size_of(descriptor_->get(), path_);
  if (size == 0) return;  // nothing to map, which mmap refuses
  auto* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor_->get(), 0);
  check_config(data != MAP_FAILED, "{}: {} bytes cannot be mapped: {}", path_, size, last_error());
  bytes_ = {static_cast<const char*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::advise(Access access) const {
  if (bytes_.empty()) return;
  // Advice only: a system that does not take it reads as before.
  madvise(const_cast<char*>(bytes_.data()), bytes_.size(), access == Access::kSequential ? MADV_SEQUENTIAL : MADV_RANDOM);
}

// Memory that is mapped costs a fault for each of its pages, which for large files is most of the time.
void MappedFile::copy_out(std::string_view part, char* to) const {
  if (part.empty()) return;  // `to` may be null then
  ensure(part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size(), "{}: not its bytes", path_);
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data());
  for (std::size_t done = 0; done < part.size();) {
    const auto count = pread(descriptor_->get(), to + done, part.size() - done, static_cast<off_t>(begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(path_, "read", errno);
    if (count == 0) throw FileError(path_ + ": is shorter than it was when it was opened", EIO);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace accel
