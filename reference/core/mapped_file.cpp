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

class ReadableFile {
 public:
  // A pipe that nobody writes into does not hold up the opening.
  explicit ReadableFile(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {}
  ~ReadableFile() {
    if (is_open()) close(descriptor_);
  }
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  [[nodiscard]] bool is_open() const { return descriptor_ >= 0; }
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

struct stat status_of(const ReadableFile& file, const std::string& path) {
  struct stat status {};
  check_config(fstat(file.get(), &status) == 0, "{}: its size cannot be read: {}", path, last_error());
  check_config(!S_ISDIR(status.st_mode), "{}: is a folder; expected a file", path);
  check_config(S_ISREG(status.st_mode), "{}: is a pipe or a device; expected a regular file, which can be mapped",
               path);
  return status;
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const ReadableFile file(path_);
  check_config(file.is_open(), "{}: cannot be opened: {}", path_, last_error());
  const auto status = status_of(file, path_);
  const auto size = static_cast<std::size_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (size == 0) return;  // nothing to map, which mmap refuses
  auto* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  check_config(data != MAP_FAILED, "{}: {} bytes cannot be mapped: {}", path_, size, last_error());
  bytes_ = {static_cast<const char*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::advise(Access access) const {
  if (bytes_.empty()) return;
  // Advice only: a system that does not take it reads as before.
  madvise(const_cast<char*>(bytes_.data()), bytes_.size(),
          access == Access::kSequential ? MADV_SEQUENTIAL : MADV_RANDOM);
}

// Memory that is mapped costs a fault for each of its pages, which for large files is most of the time.
void MappedFile::copy_out(std::string_view part, char* to) const {
  if (part.empty()) return;  // `to` may be null then
  ensure(part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size(),
         "{}: not its bytes", path_);
  const auto begin = static_cast<std::size_t>(part.data() - bytes_.data());
  const ReadableFile file(path_);
  struct stat status {};
  const bool is_this =
      file.is_open() && fstat(file.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  if (!is_this) {
    std::memcpy(to, part.data(), part.size());
    return;
  }
  for (std::size_t done = 0; done < part.size();) {
    const auto count = pread(file.get(), to + done, part.size() - done, static_cast<off_t>(begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(path_, "read", errno);
    if (count == 0) throw FileError(path_ + ": is shorter than it was when it was opened", EIO);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace accel
