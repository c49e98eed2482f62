#include "reference/sharded/file_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "reference/core/errors.hpp"
#include "reference/core/files.hpp"

namespace accel::sharded {
namespace {

constexpr std::size_t kLeastBytes = 64 << 10;

// Without a name; file systems that cannot make such a file get one that is removed at once.
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

FileMemory::FileMemory(std::string folder) : folder_(std::move(folder)) {
  std::error_code error;
  std::filesystem::create_directories(folder_, error);
  if (error) throw FileError(folder_, "made", error.value());
  const UnnamedFile file(folder_);
}

void* FileMemory::allocate(std::size_t bytes, c10::Allocator& /*below*/) {
  if (bytes < kLeastBytes) return nullptr;
  const UnnamedFile file(folder_);
  // Room that is promised and not there would be a signal at the first write.
  if (const int error = ::posix_fallocate(file.get(), 0, static_cast<off_t>(bytes)); error != 0)
    throw FileError(folder_, "used for a tensor of " + std::to_string(bytes) + " bytes", error);
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (data == MAP_FAILED) throw FileError(folder_, "mapped for a tensor of " + std::to_string(bytes) + " bytes", errno);
  return data;
}

void FileMemory::free(void* data, std::size_t bytes, c10::DeleterFnPtr /*free_below*/) { ::munmap(data, bytes); }

bool is_in_file(const at::Tensor& tensor) {
  return std::dynamic_pointer_cast<FileMemory>(source_of(tensor.storage().data())) != nullptr;
}

}  // namespace accel::sharded
