#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "reference/sharded/memory_scope.hpp"

namespace accel::sharded {

/// Tensor memory in files of a folder. The system writes pages out and reads them back as it needs memory: DeepSpeed's
/// offload to NVMe.
///
///     const MemoryScope scope(std::make_shared<FileBackedMemory>("/local_nvme"));
///
/// Tensors below 64 KiB stay in memory. A file has no name, reserves its space at once, and disappears with the tensor
/// or the process. Throws FileError if there is no space. Thread rule: any thread.
class FileBackedMemory final : public MemorySource {
 public:
  /// Creates the folder if it does not exist. Throws FileError if files cannot be created in it.
  explicit FileBackedMemory(std::string folder);
  void* allocate(std::size_t bytes, c10::Allocator& below) override;
  void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) override;

 private:
  std::string folder_;
};

/// Whether a tensor's memory is in a file.
[[nodiscard]] bool is_file_backed(const at::Tensor& tensor);

}  // namespace accel::sharded
