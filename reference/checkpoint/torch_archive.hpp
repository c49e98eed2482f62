#pragma once

#include <c10/core/Storage.h>

#include <string>

#include "reference/checkpoint/python_object.hpp"
#include "reference/checkpoint/zip_archive.hpp"

/// A file of torch.save, opened: its objects are there, its tensors are read as they are asked for.
///
///     const TorchArchive archive("pytorch_model.bin");
///     const auto weight = archive.tensor(view, archive.storage(view));
///
/// Thread rule: any number of readers.
namespace accel::checkpoint {

class TorchArchive {
 public:
  /// Throws CheckpointError that names the file: see ZipArchive and `unpickle`.
  explicit TorchArchive(const std::string& path);

  [[nodiscard]] const std::string& path() const { return archive_.path(); }
  [[nodiscard]] const PythonObject& root() const { return *root_; }
  /// To be called before what the pickle holds is copied; see PythonObjects. Not for several threads.
  void spend(std::uint64_t bytes) { objects_.spend(bytes, what_); }

  /// The elements of a view lie in its record; else CheckpointError.
  void check(const python::TensorView& view) const;
  /// A copy of the record that a view looks at. Throws CheckpointError if its checksum does not fit.
  [[nodiscard]] at::Storage storage(const python::TensorView& view) const;
  /// The view, on the copy of its record; checked before.
  [[nodiscard]] at::Tensor tensor(const python::TensorView& view, const at::Storage& storage) const;

 private:
  ZipArchive archive_;
  std::string what_;
  PythonObjects objects_;
  const PythonObject* root_;
  bool is_big_endian_ = false;
};

}  // namespace accel::checkpoint
