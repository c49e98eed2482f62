#pragma once

#include "sim/collectives/tensors/host_tensor.hpp"
#include "sim/ranks/buffer_guard.hpp"
#include "sim/ranks/tensor_call.hpp"

/// What the checks of a rank's calls need of a kind of tensor. Specialised here for HostTensor, and in sim/backend for
/// at::Tensor:
///
///     description_of      what messages and rules say of it
///     sample_of           hash of a sample of its bytes; 0: none can be taken
///     add_memory          appends the memory that it uses
///     dense_part          the tensor itself; of a sparse one, its values
///     set_first, flip_bit injected corruptions
///
/// Thread rule: as at::Tensor.
namespace accel::sim {

template <typename Tensor>
struct TensorInspection;

template <>
struct TensorInspection<HostTensor> {
  static TensorDescription description_of(const HostTensor& tensor);
  static std::uint64_t sample_of(const HostTensor& tensor);
  static void add_memory(const HostTensor& tensor, bool is_written, std::vector<PendingMemory>& memory);
  static const HostTensor& dense_part(const HostTensor& tensor) {
    return tensor.is_sparse() ? tensor.values() : tensor;
  }
  static void set_first(const HostTensor& tensor, double value);
  static void flip_bit(const HostTensor& tensor, std::int64_t bit);
};

}  // namespace accel::sim
