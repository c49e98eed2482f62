#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

/// at::linear with one node of autograd in the place of two: results and gradients of the same bits, ready in the same
/// order.
///
///     if (auto output = accel::plain_linear(input, weight, bias)) return *output;
///     return at::linear(input, weight, bias);
///
/// LibTorch transposes the weight by an operation of its own, forward and backward, and takes each operator through
/// every layer of the dispatcher. In a small network that is a tenth of a step.
///
/// Thread rule: pure function.
namespace accel {

/// input * weight^T + bias, (N, out), twice differentiable, of a batch of rows (N, in), a weight (out, in) and a bias
/// that are dense, row by row, real and on the CPU; nothing of other tensors, without a bias, of an input that is
/// itself trained, and where more than autograd looks on: autocast, functional transforms, tracing, derivatives in
/// forward mode.
///
/// Throws c10::Error, as at::linear does, if the shapes or dtypes do not fit.
/// Source: aten/src/ATen/native/Linear.cpp, linear; torch/csrc/autograd/FunctionsManual.cpp, mm_mat1_grad,
/// mm_mat2_grad.
std::optional<at::Tensor> plain_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias);

}  // namespace accel
