#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "reference/sharded/memory_scope.hpp"

namespace accel::sharded {

/// Memory of tensors in files of a folder, which the system writes out and reads back as it needs room: DeepSpeed's
/// offload to nvme.
///
///     const MemoryScope scope(std::make_shared<FileMemory>("/local_nvme"));
///
/// Tensors below 64 KiB stay where they are. A file has no name, takes its room at once, and is gone with the tensor or
/// the process. Throws FileError if there is no room. Thread rule: any thread.
class FileMemory final : public MemorySource {
 public:
  /// The folder is made if it is not there. Throws FileError if files cannot be made in it.
  explicit FileMemory(std::string folder);
  void* allocate(std::size_t bytes, c10::Allocator& below) override;
  void free(void* data, std::size_t bytes, c10::DeleterFnPtr free_below) override;

 private:
  std::string folder_;
};

/// Whether a tensor's memory is in a file.
[[nodiscard]] bool is_in_file(const at::Tensor& tensor);

}  // namespace accel::sharded
