// Note [Reading without SIGBUS]. Access to a mapping beyond the end of a shortened file raises SIGBUS, and bytes
// between the new end and the end of its page silently become zeros. Handling the signal would compete with the
// handlers of other libraries. Therefore parts are copied by system calls, which return an error or a short count.
#include "reference/files/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <system_error>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"

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
  int release() { return std::exchange(descriptor_, -1); }

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

// Descriptors are numbered from the lowest free one, so the number shows how many are in use. Half of them is left to
// connections and other files: a checkpoint of many shards, read by many ranks, would otherwise use up the limit.
bool leaves_half_of_the_descriptors(int descriptor) {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 && static_cast<rlim_t>(descriptor) < limit.rlim_cur / 2;
}

[[noreturn]] void throw_shortened(const std::string& path) {
  throw FileError(path + ": the file became shorter after it was opened; keep other programs from writing to it", EIO);
}

}  // namespace

// The mapping is needed when the path names another file later (checkpoints are replaced by rename) and no descriptor
// was kept. Device and inode are kept so that `read` can recognize the file.
MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  ReadableFile file(path_);
  check_config(file.is_open(), "{}: cannot be opened: {}; expected a readable file", path_, last_error());
  const auto status = status_of(file, path_);
  const auto size = static_cast<std::size_t>(status.st_size);
  device_ = status.st_dev;
  inode_ = status.st_ino;
  if (size == 0) return;  // mmap rejects a length of 0
  auto* data = mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  check_config(data != MAP_FAILED, "{}: {} bytes cannot be mapped: {}", path_, size, last_error());
  bytes_ = {static_cast<const char*>(data), size};
  if (leaves_half_of_the_descriptors(file.get())) descriptor_ = file.release();
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
  if (descriptor_ >= 0) close(descriptor_);
}

// The results are ignored: a kernel that rejects the advice reads correctly, only slower.
void MappedFile::advise(Access access) const {
  if (bytes_.empty()) return;
  const bool is_sequential = access == Access::kSequential;
  madvise(const_cast<char*>(bytes_.data()), bytes_.size(), is_sequential ? MADV_SEQUENTIAL : MADV_RANDOM);
  if (descriptor_ >= 0) posix_fadvise(descriptor_, 0, 0, is_sequential ? POSIX_FADV_SEQUENTIAL : POSIX_FADV_RANDOM);
}

void MappedFile::read(std::size_t begin, std::size_t num_bytes, char* to) const {
  check_argument(begin <= size() && num_bytes <= size() - begin,
                 "{}: {} bytes at byte {} are outside the file of {} bytes", path_, num_bytes, begin, size());
  if (num_bytes == 0) return;  // `to` may be null in this case
  if (descriptor_ >= 0) return read_from(descriptor_, begin, num_bytes, to);
  const ReadableFile file(path_);
  struct stat status {};
  const bool is_this =
      file.is_open() && fstat(file.get(), &status) == 0 && status.st_dev == device_ && status.st_ino == inode_;
  if (is_this)
    read_from(file.get(), begin, num_bytes, to);
  else
    read_mapping(begin, num_bytes, to);
}

std::string MappedFile::read(std::size_t begin, std::size_t num_bytes) const {
  std::string bytes(num_bytes, '\0');
  read(begin, num_bytes, bytes.data());
  return bytes;
}

// One buffer for all pieces: the time to fill a new one with zeros would be that of reading.
void MappedFile::read_pieces(const std::function<void(std::size_t begin, std::string_view bytes)>& use) const {
  constexpr std::size_t kPieceBytes = 1 << 20;
  std::string buffer(std::min(kPieceBytes, size()), '\0');
  for (std::size_t begin = 0; begin < size(); begin += kPieceBytes) {
    const auto num_bytes = std::min(kPieceBytes, size() - begin);
    read(begin, num_bytes, buffer.data());
    use(begin, std::string_view(buffer).substr(0, num_bytes));
  }
}

void MappedFile::read_from(int descriptor, std::size_t begin, std::size_t num_bytes, char* to) const {
  for (std::size_t done = 0; done < num_bytes;) {
    const auto count = pread(descriptor, to + done, num_bytes - done, static_cast<off_t>(begin + done));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw FileError(path_, "read", errno);
    if (count == 0) throw_shortened(path_);
    done += static_cast<std::size_t>(count);
  }
}

// Copies from this process to itself: for a page that cannot be read the kernel returns EFAULT and raises no signal.
void MappedFile::read_mapping(std::size_t begin, std::size_t num_bytes, char* to) const {
  for (std::size_t done = 0; done < num_bytes;) {
    const iovec target{to + done, num_bytes - done};
    const iovec source{const_cast<char*>(bytes_.data()) + begin + done, num_bytes - done};
    const auto count = process_vm_readv(getpid(), &target, 1, &source, 1, 0);
    if (count < 0 && errno == EFAULT) throw_shortened(path_);
    if (count <= 0) throw FileError(path_ + ": the file was replaced after it was opened; load it again", errno);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace accel
