#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

/// A tensor stored in a file: dense, row-major, at any alignment. Reading copies only the requested rows.
///
///     const auto images = file.stored("images");
///     const auto batch = images.rows({5, 0, 3});     // reads three rows
///
/// Thread rule: any number of readers.
namespace accel {

class MappedFile;

struct StoredTensor {
  std::shared_ptr<const void> owner = {};  ///< keeps `bytes` alive
  std::string_view bytes = {};             ///< exactly the bytes of the tensor
  at::ScalarType dtype = at::kByte;
  std::vector<std::int64_t> sizes = {};
  bool is_big_endian = false;
  /// The mapped file that contains `bytes`, or null. If set, load() reads the file without touching mapped pages.
  const MappedFile* file = nullptr;

  /// Loads the complete tensor.
  [[nodiscard]] at::Tensor load() const;
  /// Loads into an existing tensor of these sizes and any dtype, strides and device.
  void load_into(const at::Tensor& tensor) const;
  /// Loads row `index` of dimension 0. Throws ArgumentError if the index is out of range or there is no dimension.
  [[nodiscard]] at::Tensor row(std::int64_t index) const;
  /// Loads rows of dimension 0 in the given order, stacked. Throws as `row` does.
  [[nodiscard]] at::Tensor rows(const std::vector<std::int64_t>& indices) const;

 private:
  [[nodiscard]] std::string_view row_bytes(std::int64_t index) const;
};

/// Returns the number of bytes of a dense tensor, or nullopt if a size is negative, the number of bits exceeds 63 bits
/// or is not a multiple of 8.
std::optional<std::int64_t> num_bytes_of(const std::vector<std::int64_t>& sizes, std::int64_t bits_per_element);

}  // namespace accel
