#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// The int64_t words by which Python describes tensors and calls: see rank_library.hpp.
namespace accel::python {

/// A tensor as the caller describes it.
struct RawTensor {
  std::byte* address = nullptr;
  std::int64_t item_bytes = 0;
  int dtype = 0;
  std::vector<std::int64_t> sizes, strides;

  [[nodiscard]] std::int64_t num_elements() const {
    std::int64_t count = 1;
    for (const auto size : sizes) count *= size;
    return count;
  }
  /// Whether the elements lie in the order of the dimensions, without gaps.
  [[nodiscard]] bool is_contiguous() const {
    std::int64_t expected = 1;
    for (auto dim = sizes.size(); dim-- > 0;) {
      if (sizes[dim] != 1 && strides[dim] != expected) return num_elements() == 0;
      expected *= sizes[dim];
    }
    return true;
  }
  /// From the first to the last element, gaps included.
  [[nodiscard]] std::uint64_t bytes() const {
    if (num_elements() == 0) return 0;
    std::int64_t last = 0;
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) last += (sizes[dim] - 1) * strides[dim];
    return static_cast<std::uint64_t>((last + 1) * item_bytes);
  }
  /// As at::Tensor::is_non_overlapping_and_dense: the elements fill their memory, in any order of dimensions.
  [[nodiscard]] bool is_dense() const {
    std::vector<std::pair<std::int64_t, std::int64_t>> dims;  // stride, size
    for (std::size_t dim = 0; dim < sizes.size(); ++dim) {
      if (sizes[dim] == 0) return true;
      if (sizes[dim] > 1) dims.emplace_back(strides[dim], sizes[dim]);
    }
    std::sort(dims.begin(), dims.end());
    std::int64_t expected = 1;
    for (const auto& [stride, size] : dims) {
      if (stride != expected) return false;
      expected *= size;
    }
    return true;
  }
};

/// Reads the words of a caller in order.
class Words {
 public:
  explicit Words(const std::int64_t* next) : next_(next) {}
  std::int64_t number() { return *next_++; }
  std::vector<std::int64_t> list(std::int64_t count) {
    std::vector<std::int64_t> numbers(next_, next_ + count);
    next_ += count;
    return numbers;
  }
  RawTensor tensor() {
    RawTensor tensor;
    tensor.address = reinterpret_cast<std::byte*>(number());
    tensor.item_bytes = number();
    tensor.dtype = static_cast<int>(number());
    const auto num_dims = number();
    tensor.sizes = list(num_dims);
    tensor.strides = list(num_dims);
    return tensor;
  }

 private:
  const std::int64_t* next_;
};

}  // namespace accel::python
