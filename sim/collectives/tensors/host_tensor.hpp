#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "sim/collectives/tensors/tensor_algebra.hpp"

/// A tensor in host memory, for ranks whose collectives are computed without LibTorch: what collectives need of
/// at::Tensor, with the same bits.
///
///     const HostTensor row(owner, data, c10::ScalarType::Float, /*sizes=*/{3}, /*strides=*/{1});
///
/// Of LibTorch only the header of dtypes is used, which needs no library. Thread rule: as at::Tensor.
namespace accel::sim {

class HostTensor {
 public:
  using Sizes = std::vector<std::int64_t>;

  HostTensor() = default;
  /// `strides` are in elements. `owner` lives as long as any tensor of this memory.
  HostTensor(std::shared_ptr<const void> owner, void* data, c10::ScalarType dtype, Sizes sizes, Sizes strides);

  [[nodiscard]] const Sizes& sizes() const { return sizes_; }
  [[nodiscard]] const Sizes& strides() const { return strides_; }
  [[nodiscard]] std::int64_t dim() const { return static_cast<std::int64_t>(sizes_.size()); }
  [[nodiscard]] std::int64_t size(std::int64_t dim) const { return sizes_.at(static_cast<std::size_t>(dim)); }
  [[nodiscard]] std::int64_t numel() const { return numel_; }
  [[nodiscard]] std::int64_t element_size() const;
  [[nodiscard]] std::size_t nbytes() const { return static_cast<std::size_t>(numel_ * element_size()); }
  [[nodiscard]] c10::ScalarType scalar_type() const { return dtype_; }
  [[nodiscard]] bool is_contiguous() const;
  /// Whether each element of a block of memory occurs once, in any order.
  [[nodiscard]] bool is_non_overlapping_and_dense() const;
  [[nodiscard]] std::byte* data() const { return data_; }
  /// Expires with the last tensor of this memory.
  [[nodiscard]] std::weak_ptr<const void> owner() const { return owner_; }

  /// A sparse tensor (COO) has entries instead of elements in memory: their indices, (sparse dimensions, entries), and
  /// their values, (entries, ...). Expects sorted indices without duplicates.
  static HostTensor sparse(Sizes sizes, HostTensor indices, HostTensor values);
  [[nodiscard]] bool is_sparse() const { return entries_ != nullptr; }
  [[nodiscard]] const HostTensor& indices() const { return entries_->front(); }
  [[nodiscard]] const HostTensor& values() const { return entries_->back(); }

  /// Views: other sizes of a contiguous tensor; rows begin to end - 1 of dimension 0; all elements of a dense tensor in
  /// the order of memory.
  [[nodiscard]] HostTensor view(Sizes sizes) const;
  [[nodiscard]] HostTensor rows(std::int64_t begin, std::int64_t end) const;
  [[nodiscard]] HostTensor in_memory_order() const;
  /// A complex tensor as pairs of real numbers; another one as it is.
  [[nodiscard]] HostTensor as_real() const;
  /// The tensor itself if it is contiguous, else a copy.
  [[nodiscard]] HostTensor contiguous() const;
  /// A contiguous copy.
  [[nodiscard]] HostTensor clone() const;

 private:
  std::shared_ptr<const void> owner_;
  std::byte* data_ = nullptr;
  c10::ScalarType dtype_ = c10::ScalarType::Float;
  Sizes sizes_, strides_;
  std::int64_t numel_ = 0;
  std::shared_ptr<const std::array<HostTensor, 2>> entries_;
};

/// A new contiguous tensor; its elements are not set.
HostTensor empty(c10::ScalarType dtype, HostTensor::Sizes sizes);

template <>
struct TensorAlgebra<HostTensor> {
  struct Unobserved {
    Unobserved() {}  // not trivial, so that a variable counts as used
  };
  static bool is_on_host(const HostTensor&) { return true; }
  static bool is_sparse(const HostTensor& tensor) { return tensor.is_sparse(); }
  static void* data(const HostTensor& tensor) { return tensor.data(); }
  static HostTensor as_real(const HostTensor& tensor) { return tensor.as_real(); }
  static HostTensor in_memory_order(const HostTensor& tensor) { return tensor.in_memory_order(); }
  static HostTensor host_contiguous(const HostTensor& tensor) { return tensor.contiguous(); }
  static HostTensor host_clone(const HostTensor& tensor) { return tensor.clone(); }
  static HostTensor empty_like(const HostTensor& tensor) { return empty(tensor.scalar_type(), tensor.sizes()); }
  static HostTensor joined(const std::vector<HostTensor>& tensors);
  static HostTensor view(const HostTensor& tensor, HostTensor::Sizes sizes) { return tensor.view(std::move(sizes)); }
  static HostTensor reshape(const HostTensor& tensor, HostTensor::Sizes sizes) {
    return tensor.contiguous().view(std::move(sizes));
  }
  static HostTensor rows(const HostTensor& tensor, std::int64_t begin, std::int64_t end) {
    return tensor.rows(begin, end);
  }
  static void copy(const HostTensor& to, const HostTensor& from);
  static void copy_bytes(const HostTensor& to, const HostTensor& from) { copy(to, from); }
  static HostTensor coalesced(const HostTensor& tensor) { return tensor; }
  static HostTensor copy_of(const HostTensor& tensor);
  static std::vector<HostTensor> parts_of(const HostTensor& tensor, const HostTensor& part, int count);
  /// Leaves complex numbers as they are.
  static void divide(const HostTensor& tensor, std::int64_t divisor);
  static std::vector<bool> nans_of(const HostTensor& tensor);
  static HostTensor sum_sparse(const std::vector<HostTensor>& tensors);
  static void assign_sparse(HostTensor& to, const HostTensor& sum) { to = sum; }
};

}  // namespace accel::sim
