#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

/// Gradient clipping with the operations, and so the bits, of Python's torch.nn.utils.clip_grad.
namespace accel::optim {

/// The norm of all gradients, taken as one vector; shape []. 0 if there are no gradients. Computed in `dtype`, by
/// default in that of the gradients, as in Python.
at::Tensor grad_norm(const std::vector<at::Tensor>& parameters, double norm_type = 2.0,
                     std::optional<at::ScalarType> dtype = {});

/// Scales all gradients so that their norm is at most `max_norm`; returns the previous norm (shape []). Skips
/// parameters without a gradient. `norm_type` may be infinity.
at::Tensor clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0,
                          std::optional<at::ScalarType> dtype = {});

/// The same with a given norm, for gradients of which other ranks hold parts.
void scale_to_norm(const std::vector<at::Tensor>& parameters, const at::Tensor& total_norm, double max_norm);

/// Clamps every gradient element to [-clip_value, clip_value].
void clip_grad_value(const std::vector<at::Tensor>& parameters, double clip_value);

}  // namespace accel::optim
