#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "reference/models/gpt_options.hpp"

/// Rotary position embeddings: attention rotates each query and key by an angle that is proportional to its position,
/// so that their product depends on the distance.
///
///     RotaryEmbedding rotary(head_width, options.rope_parameters);
///     const auto rotation = rotary.of_positions(at::arange(length), values);
///     queries = rotated(queries, rotation);
///
/// Thread rule: each model has its own RotaryEmbedding, which belongs to the model's rank; the functions are pure.
/// Source: transformers/models/llama/modeling_llama.py, LlamaRotaryEmbedding, apply_rotary_pos_emb;
/// transformers/modeling_rope_utils.py. Operators and their order are the same, so that results have the same bits.
namespace accel::models {

/// Cosines and sines of the angles, both (1, length, head_width); empty without rotary embeddings. A vector, so that it
/// passes through accel::call in both cases.
using Rotation = std::vector<at::Tensor>;

/// The angle by which each pair of numbers rotates per position: (head_width / 2) float32 or float64 on the CPU.
at::Tensor rotary_frequencies(std::int64_t head_width, const RopeParameters& parameters,
                              at::ScalarType type = at::kFloat);

/// `values`: (B, heads, T, head_width).
at::Tensor rotated(const at::Tensor& values, const Rotation& rotation);

class RotaryEmbedding {
 public:
  RotaryEmbedding(std::int64_t head_width, RopeParameters parameters)
      : head_width_(head_width), parameters_(std::move(parameters)) {}

  /// The rotation of `positions` (length) int64, with the device and dtype of `values`. Computed in float32, or in
  /// float64 if `values` have it.
  Rotation of_positions(const at::Tensor& positions, const at::Tensor& values);

 private:
  std::int64_t head_width_;
  RopeParameters parameters_;
  // Not a buffer: Python's is not in the state dict either. Computed on the CPU at first use, so that models built on
  // the meta device have it and every device has the same bits, then kept on the device.
  at::Tensor frequencies_;
};

}  // namespace accel::models
