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
  // O_NONBLOCK: opening a pipe without a writer would otherwise block forever.
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
  check_config(fstat(file.get(), &status) == 0, "{}: cannot read the file size: {}", path, last_error());
  check_config(!S_ISDIR(status.st_mode), "{}: is a folder; expected a regular file", path);
  check_config(S_ISREG(status.st_mode),
               "{}: is a pipe or a device; expected a regular file, which can be memory-mapped", path);
  return status;
}

}  // namespace

// The mapping outlives the descriptor, which is closed on return: a checkpoint of many shards would otherwise
// exhaust the process's descriptor limit. Device and inode are kept so that copy_out can recognize the file
// again.
MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  const ReadableFile file(path_);
  check_config(file.is_open(), "{}: cannot be opened: {}; expected a readable file", path_, last_error());
  const auto status = status_of(file, path_);
  const auto size = static_cast<std::size_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (size == 0) return;  // mmap rejects a length of 0
  auto* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  check_config(data != MAP_FAILED, "{}: {} bytes cannot be mapped: {}", path_, size, last_error());
  bytes_ = {static_cast<const char*>(data), size};
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
}

void MappedFile::advise(Access access) const {
  if (bytes_.empty()) return;
  // The result is ignored: a kernel that rejects the advice reads correctly, only slower.
  madvise(const_cast<char*>(bytes_.data()), bytes_.size(),
          access == Access::kSequential ? MADV_SEQUENTIAL : MADV_RANDOM);
}

// Reads with pread instead of copying from the mapping: the mapping costs one page fault per page, which
// dominates the time for large files, and leaves the pages in the process's resident memory. The path may name
// another file by now (checkpoints are replaced by rename); then only the mapping still has the right bytes.
void MappedFile::copy_out(std::string_view part, char* to) const {
  if (part.empty()) return;  // `to` may be null in this case
  ensure(part.data() >= bytes_.data() && part.data() + part.size() <= bytes_.data() + bytes_.size(),
         "{}: copy_out: the bytes are not part of this file", path_);
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
    if (count == 0)
      throw FileError(path_ + ": the file became shorter after it was opened; keep other programs from writing to it",
                      EIO);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace accel
