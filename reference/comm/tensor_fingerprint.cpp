#include "reference/comm/tensor_fingerprint.hpp"

#include <ATen/CPUGeneratorImpl.h>

#include <array>
#include <bit>

#include "reference/comm/fingerprint.hpp"
#include "reference/comm/operator_watch.hpp"

namespace accel {

// Tensors on a device, or with gaps, are copied first: only bytes in one piece can be hashed.
std::uint64_t fingerprint(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.is_contiguous()) return fingerprint(tensor.const_data_ptr(), tensor.nbytes());
  const auto bytes = tensor.detach().to(at::kCPU).contiguous();
  return fingerprint(bytes.const_data_ptr(), bytes.nbytes());
}

std::uint64_t sample_fingerprint(const at::Tensor& tensor) {
  if (!has_memory(tensor) || !tensor.is_cpu() || !tensor.is_non_overlapping_and_dense()) return 0;
  return sample_fingerprint(tensor.const_data_ptr(), tensor.nbytes());
}

// Without creating a tensor. Cached normal samples are part of the state: two generators with equal engines and
// different caches draw different numbers.
std::uint64_t fingerprint(const at::Generator& generator) {
  auto& state = *at::check_generator<at::CPUGeneratorImpl>(generator);
  const auto engine = state.engine().data();
  const auto float_normal = state.next_float_normal_sample();
  const auto double_normal = state.next_double_normal_sample();
  const std::array<std::uint64_t, 6> rest{engine.seed_,
                                          static_cast<std::uint64_t>(engine.left_),
                                          engine.next_,
                                          std::bit_cast<std::uint32_t>(float_normal.value_or(0)),
                                          std::bit_cast<std::uint64_t>(double_normal.value_or(0)),
                                          2u * float_normal.has_value() + double_normal.has_value()};
  return fingerprint(engine.state_.data(), sizeof(engine.state_)) + fingerprint(rest.data(), sizeof(rest));
}

}  // namespace accel
