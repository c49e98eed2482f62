#pragma once

#include <c10/core/Storage.h>

#include <string>
#include <vector>

#include "reference/checkpoint/python_object.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/zip_archive.hpp"

/// An open file of torch.save. Objects are unpickled on construction; tensors are read on request.
///
///     const TorchArchive archive("pytorch_model.bin");
///     const auto weight = archive.tensor(view, archive.storage(view));
///
/// Thread rule: any number of readers.
namespace accel::checkpoint {

class TorchArchive {
 public:
  /// Throws CheckpointError that names the file: see ZipArchive and `unpickle`.
  explicit TorchArchive(const std::string& path) : TorchArchive(ZipArchive(path)) {}
  explicit TorchArchive(ZipArchive archive);

  [[nodiscard]] const std::string& path() const { return archive_.path(); }
  [[nodiscard]] const PythonObject& root() const { return *root_; }
  /// Call it before contents of the pickle are copied: see PythonObjects. Not thread-safe.
  void spend(std::uint64_t bytes) { objects_.spend(bytes, what_); }

  /// Throws CheckpointError if elements of the view lie outside its record.
  void check(const python::TensorView& view) const;
  /// Returns a copy of the view's record. Throws CheckpointError if its checksum does not match.
  [[nodiscard]] at::Storage storage(const python::TensorView& view) const;
  /// Returns the view as a tensor on the copy of its record. The view must have been checked.
  [[nodiscard]] at::Tensor tensor(const python::TensorView& view, const at::Storage& storage) const;

 private:
  ZipArchive archive_;
  std::string what_;
  PythonObjects objects_;
  const PythonObject* root_;
  bool is_big_endian_ = false;
};

/// Converts the archive's root object, as read_torch_file does.
[[nodiscard]] Value read_value(TorchArchive& archive);

/// Appends an archive of torch.save to a file that may contain more. `place` is the path of `value` in `options`.
/// Errors name `what`. Throws like write_torch_file.
void append_archive(WritableFile& file, const Value& value, const TorchFileOptions& options,
                    const std::vector<std::string>& place, const std::string& what);
/// The number of bytes that append_archive writes. Does not read the elements of tensors.
[[nodiscard]] std::int64_t archive_size(const Value& value, const TorchFileOptions& options,
                                        const std::vector<std::string>& place, const std::string& what);

}  // namespace accel::checkpoint
