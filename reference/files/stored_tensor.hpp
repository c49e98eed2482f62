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
  std::string_view bytes = {};             ///< exactly the bytes of the tensor, if they are in memory
  at::ScalarType dtype = at::kByte;
  std::vector<std::int64_t> sizes = {};
  bool is_big_endian = false;
  std::shared_ptr<const MappedFile> file = {};  ///< contains the bytes from `offset`; null: they are in memory
  std::size_t offset = 0;

  /// Loads the complete tensor. This and all functions below throw FileError, which names the file, if it cannot be
  /// read or was shortened.
  [[nodiscard]] at::Tensor load() const;
  /// Loads into an existing tensor of these sizes and any dtype, strides and device.
  void load_into(const at::Tensor& tensor) const;
  /// Loads row `index` of dimension 0. Throws ArgumentError if the index is out of range or there is no dimension.
  [[nodiscard]] at::Tensor row(std::int64_t index) const;
  /// Loads rows of dimension 0 in the given order, stacked. Throws as `row` does.
  [[nodiscard]] at::Tensor rows(const std::vector<std::int64_t>& indices) const;

 private:
  void read(std::size_t begin, std::size_t num_bytes, char* to) const;
  void check_row(std::int64_t index) const;
};

/// LibTorch's limit of most operators, and the limit of shapes in files: LibTorch needs quadratic time to create a
/// tensor of many dimensions.
inline constexpr std::size_t kDimensionsMax = 64;

/// Returns the number of bytes of a dense tensor, or nullopt if a size is negative, the number of bits exceeds 63 bits
/// or is not a multiple of 8.
std::optional<std::int64_t> num_bytes_of(const std::vector<std::int64_t>& sizes, std::int64_t bits_per_element);

}  // namespace accel
