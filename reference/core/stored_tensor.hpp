#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

/// A tensor as it lies in a file: dense, row by row, at any alignment. Reading copies what is asked for and nothing
/// else.
///
///     const auto images = file.stored("images");
///     const auto batch = images.rows({5, 0, 3});     // reads three rows
///
/// Thread rule: any number of readers.
namespace accel {

class MappedFile;

struct StoredTensor {
  std::shared_ptr<const void> owner = {};  ///< keeps `bytes` where they are
  std::string_view bytes = {};             ///< exactly those of the tensor
  at::ScalarType dtype = at::kByte;
  std::vector<std::int64_t> sizes = {};
  bool is_big_endian = false;
  const MappedFile* file =
      nullptr;  ///< where the bytes are those of a mapped file: loading all of it leaves none of them in memory

  /// All of it.
  [[nodiscard]] at::Tensor load() const;
  /// The same into a tensor of these sizes, of any dtype, strides and device.
  void load_into(const at::Tensor& tensor) const;
  /// Row `index` of dimension 0. Throws ArgumentError outside of it, or where there is no dimension.
  [[nodiscard]] at::Tensor row(std::int64_t index) const;
  /// Those rows of dimension 0, stacked in the order asked for. Throws as `row`.
  [[nodiscard]] at::Tensor rows(const std::vector<std::int64_t>& indices) const;

 private:
  [[nodiscard]] std::string_view row_bytes(std::int64_t index) const;
};

/// Number of bytes of a dense tensor; nothing if that is beyond 63 bits or no whole number of them.
std::optional<std::int64_t> num_bytes_of(const std::vector<std::int64_t>& sizes, std::int64_t bits_per_element);

}  // namespace accel
