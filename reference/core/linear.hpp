#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

/// at::linear with one autograd node instead of two. Results and gradients have the same bits, and gradients become
/// ready in the same order.
///
///     if (auto output = accel::fused_linear(input, weight, bias)) return *output;
///     return at::linear(input, weight, bias);
///
/// LibTorch transposes the weight with a separate operator in forward and backward, and passes each operator through
/// every layer of the dispatcher. In a small network this overhead is a tenth of a step.
///
/// Thread rule: pure function.
namespace accel {

/// Returns input * weight^T + bias with shape (N, out), twice differentiable, or nullopt if the fast path does not
/// apply. It applies to a batch of rows (N, in), a weight (out, in) and a bias that are dense, row-major, real and on
/// the CPU. It does not apply without a bias, to an input that is itself a trained leaf, to matrices with one row or
/// column, or if something besides autograd observes the call: autocast, functional transforms, tracing, forward-mode
/// derivatives.
///
/// Throws c10::Error, as at::linear does, if the shapes or dtypes do not match.
/// Source: aten/src/ATen/native/Linear.cpp, linear; torch/csrc/autograd/FunctionsManual.cpp, mm_mat1_grad,
/// mm_mat2_grad.
std::optional<at::Tensor> fused_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace accel
