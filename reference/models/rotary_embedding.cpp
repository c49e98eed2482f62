#include "reference/models/rotary_embedding.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/where.h>
#include <c10/core/GradMode.h>

#include <numbers>

namespace accel::models {
namespace {

// Frequencies with a wavelength above the original context are divided by the factor, those far below are kept, and
// those between are interpolated. Source: transformers/modeling_rope_utils.py, _compute_llama3_parameters.
at::Tensor scaled_as_llama3(const at::Tensor& frequencies, const RopeParameters& parameters) {
  const auto context = static_cast<double>(parameters.original_max_position_embeddings);
  const auto low = parameters.low_freq_factor, high = parameters.high_freq_factor;
  const auto wavelengths = frequencies.reciprocal() * (2 * std::numbers::pi);
  const auto scaled = at::where(wavelengths > context / low, frequencies / parameters.factor, frequencies);
  const auto share = (wavelengths.reciprocal() * context - low) / (high - low);
  const auto smoothed = at::rsub(share, 1) * scaled / parameters.factor + share * scaled;
  const auto is_between = (wavelengths >= context / high).logical_and(wavelengths <= context / low);
  return at::where(is_between, smoothed, scaled);
}

}  // namespace

at::Tensor rotary_frequencies(std::int64_t head_width, const RopeParameters& parameters, at::ScalarType type) {
  const auto exponents = at::arange(0, head_width, 2, at::TensorOptions(at::kCPU).dtype(type)) / head_width;
  const auto frequencies = at::pow(parameters.rope_theta, exponents).reciprocal();
  if (parameters.rope_type == "linear") return frequencies / parameters.factor;
  return parameters.rope_type == "llama3" ? scaled_as_llama3(frequencies, parameters) : frequencies;
}

at::Tensor rotated(const at::Tensor& values, const Rotation& rotation) {
  // (1, T, head_width) -> (1, 1, T, head_width): equal for all heads.
  const auto cosines = rotation[0].unsqueeze(1), sines = rotation[1].unsqueeze(1);
  // In transformers' order: backward visits operators in the reverse of it, and the first gradient of `values` decides
  // the memory format of their sum, in whose order a bias's gradient is summed.
  const auto scaled = values * cosines;
  const auto half = values.size(-1) / 2;
  const auto first = values.slice(-1, 0, half), second = values.slice(-1, half);
  return scaled + at::cat({-second, first}, -1) * sines;
}

Rotation RotaryEmbedding::of_positions(const at::Tensor& positions, const at::Tensor& values) {
  const c10::NoGradGuard no_grad;
  const auto exact = at::promote_types(values.scalar_type(), at::kFloat);
  if (!frequencies_.defined() || frequencies_.scalar_type() != exact)
    frequencies_ = rotary_frequencies(head_width_, parameters_, exact);
  frequencies_ = frequencies_.to(values.device());
  const auto half = positions.unsqueeze(0).unsqueeze(-1).to(exact) * frequencies_;
  const auto angles = at::cat({half, half}, -1);
  return {angles.cos().to(values.scalar_type()), angles.sin().to(values.scalar_type())};
}

}  // namespace accel::models
