#include "reference/comm/parameter_state.hpp"

#include <ATen/core/Tensor.h>

#include "reference/comm/tensor_fingerprint.hpp"

namespace accel {

ParameterState state_of(const at::Tensor& parameter) {
  ParameterState state{.hash = fingerprint(parameter), .dtype = parameter.scalar_type()};
  const auto gradient = parameter.is_leaf() ? parameter.grad() : at::Tensor();
  if (!parameter.requires_grad()) {
    state.gradient = ParameterState::Gradient::kFrozen;
  } else if (gradient.defined()) {
    state.gradient = ParameterState::Gradient::kPresent;
    state.gradient_hash = sample_fingerprint(gradient);
  }
  return state;
}

}  // namespace accel
