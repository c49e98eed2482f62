#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include "reference/comm/collective_args.hpp"
#include "sim/ranks/group_member.hpp"
#include "sim/ranks/tensor_inspection.hpp"

/// LibTorch's tensors as those of simulated ranks: see tensor_algebra.hpp and tensor_inspection.hpp.
///
/// Thread rule: as at::Tensor.
namespace accel::sim {

template <>
struct TensorAlgebra<at::Tensor> {
  /// Neither autograd nor the operator clock sees what happens in its scope.
  struct Unobserved {
    const c10::NoGradGuard no_grad;
    const at::DisableRecordFunctionGuard unwatched;
  };
  using Sizes = std::vector<std::int64_t>;
  static bool is_on_host(const at::Tensor& tensor) { return tensor.is_cpu(); }
  static bool is_sparse(const at::Tensor& tensor) { return tensor.layout() == at::kSparse; }
  static void* data(const at::Tensor& tensor) { return tensor.data_ptr(); }
  static at::Tensor as_real(const at::Tensor& tensor);
  static at::Tensor in_memory_order(const at::Tensor& tensor);
  static at::Tensor host_contiguous(const at::Tensor& tensor);
  static at::Tensor host_clone(const at::Tensor& tensor) { return host_contiguous(tensor).clone(); }
  static at::Tensor empty_like(const at::Tensor& tensor);
  static at::Tensor joined(const std::vector<at::Tensor>& tensors);
  static at::Tensor view(const at::Tensor& tensor, const Sizes& sizes) { return tensor.view(sizes); }
  static at::Tensor reshape(const at::Tensor& tensor, const Sizes& sizes) { return tensor.reshape(sizes); }
  static at::Tensor rows(const at::Tensor& tensor, std::int64_t begin, std::int64_t end) {
    return tensor.slice(0, begin, end);
  }
  static void copy(const at::Tensor& to, const at::Tensor& from) { to.detach().copy_(from); }
  static void copy_bytes(const at::Tensor& to, const at::Tensor& from);
  static at::Tensor coalesced(const at::Tensor& tensor);
  static at::Tensor copy_of(const at::Tensor& tensor);
  static std::vector<at::Tensor> parts_of(const at::Tensor& tensor, const at::Tensor& part, int count);
  static void divide(const at::Tensor& tensor, std::int64_t divisor) { tensor.detach().div_(divisor); }
  static std::vector<bool> nans_of(const at::Tensor& tensor);
  static at::Tensor sum_sparse(const std::vector<at::Tensor>& tensors);
  static void assign_sparse(const at::Tensor& to, const at::Tensor& sum) { to.copy_(sum); }
};

template <>
struct TensorInspection<at::Tensor> {
  static TensorDescription description_of(const at::Tensor& tensor);
  static std::uint64_t sample_of(const at::Tensor& tensor);
  static void add_memory(const at::Tensor& tensor, bool is_written, std::vector<PendingMemory>& memory);
  static at::Tensor dense_part(const at::Tensor& tensor);
  static void set_first(const at::Tensor& tensor, double value);
  static void flip_bit(const at::Tensor& tensor, std::int64_t bit);
};

RankCall<at::Tensor> rank_call_of(const CollectiveArgs& args);
/// Describes one rank's call, at the program's current line.
Call call_of(const CollectiveArgs& args);
std::vector<TensorDescription> descriptions_of(const std::vector<at::Tensor>& tensors);

}  // namespace accel::sim
