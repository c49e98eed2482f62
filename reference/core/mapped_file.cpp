#include "reference/core/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

std::string last_error() { return std::generic_category().message(errno); }

class ReadableFile {
 public:
  // A pipe that nobody writes into does not hold up the opening.
  explicit ReadableFile(const std::string& path) : descriptor_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    check_config(descriptor_ >= 0, "{}: cannot be opened: {}", path, last_error());
  }
  ~ReadableFile() { close(descriptor_); }
  ReadableFile(const ReadableFile&) = delete;
  ReadableFile& operator=(const ReadableFile&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::size_t size_of(const ReadableFile& file, const std::string& path) {
  struct stat status {};
  check_config(fstat(file.get(), &status) == 0, "{}: its size cannot be read: {}", path, last_error());
  check_config(!S_ISDIR(status.st_mode), "{}: is a folder; expected a file", path);
  check_config(S_ISREG(status.st_mode), "{}: is a pipe or a device; expected a regular file, which can be mapped", path);
  return static_cast<std::size_t>(status.st_size);
}

}  // namespace

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const ReadableFile file(path_);
  const auto size = size_of(file, path_);
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
  madvise(const_cast<char*>(bytes_.data()), bytes_.size(), access == Access::kSequential ? MADV_SEQUENTIAL : MADV_RANDOM);
}

void MappedFile::copy_out(std::string_view part, char* to) const {
  constexpr std::uintptr_t kStep = 8 << 20;
  if (part.empty()) return;  // `to` may be null then
  ensure(part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size(), "{}: not its bytes", path_);
  const auto place = reinterpret_cast<std::uintptr_t>(part.data()), end = place + part.size();
  // Whole steps of the address space, so that what the kernel is told begins at a page.
  for (auto step = place - place % kStep; step < end; step += kStep) {
    const auto from = std::max(step, place), until = std::min(step + kStep, end);
    if (until < end) madvise(reinterpret_cast<void*>(until), std::min(kStep, end - until), MADV_WILLNEED);
    std::memcpy(to + (from - place), reinterpret_cast<const char*>(from), until - from);
    const auto first = std::max(step, reinterpret_cast<std::uintptr_t>(bytes_.data()));
    if (until - from >= kStep / 2) madvise(reinterpret_cast<void*>(first), until - first, MADV_DONTNEED);
  }
}

}  // namespace accel
