#include "reference/sharded/file_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"

namespace accel::sharded {
namespace {

// A file and a mapping per tensor cost system calls and at least a page each; small tensors save nothing.
constexpr std::size_t kLeastBytes = 64 << 10;

// A file without a name, so that nothing is left behind when the process is killed. File systems without O_TMPFILE get
// a named file that is unlinked at once.
class UnnamedFile {
 public:
  explicit UnnamedFile(const std::string& folder)
      : descriptor_(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)) {
    if (descriptor_ >= 0) return;
    auto path = folder + "/memory.XXXXXX";
    descriptor_ = ::mkostemp(path.data(), O_CLOEXEC);
    if (descriptor_ < 0) throw FileError(folder, "used for tensors", errno);
    ::unlink(path.c_str());
  }
  ~UnnamedFile() { ::close(descriptor_); }
  UnnamedFile(const UnnamedFile&) = delete;
  UnnamedFile& operator=(const UnnamedFile&) = delete;
  [[nodiscard]] int get() const { return descriptor_; }

 private:
  int descriptor_;
};

}  // namespace

FileBackedMemory::FileBackedMemory(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw FileError(folder_, "created", error.value());
  const UnnamedFile file(folder_);  // fails here, not in the middle of preparing a model
}

void* FileBackedMemory::allocate(std::size_t bytes, c10::Allocator& /*below*/) {
  if (bytes < kLeastBytes) return nullptr;
  const UnnamedFile file(folder_);
  // Reserves the space: a sparse file on a full disk would raise SIGBUS at the first write instead of an error here.
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0)
    throw FileError(folder_, "used for a tensor of " + std::to_string(bytes) + " bytes", error);
  // The mapping keeps the file alive after its descriptor is closed on return.
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw FileError(folder_, "mapped for a tensor of " + std::to_string(bytes) + " bytes", errno);
  return data;
}

// The file has no name and no descriptor, so unmapping it also releases its disk space.
void FileBackedMemory::free(void* data, std::size_t bytes, c10::DeleterFnPtr /*free_below*/) { ::munmap(data, bytes); }

bool is_file_backed(const at::Tensor& tensor) {
  return std::dynamic_pointer_cast<FileBackedMemory>(source_of(tensor.storage().data())) != nullptr;
}

}  // namespace accel::sharded
