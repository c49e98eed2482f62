#pragma once

#include <memory>
#include <tuple>
#include <vector>

#include "reference/models/gpt_options.hpp"
#include "reference/models/model.hpp"
#include "reference/models/residual_stream.hpp"
#include "reference/models/rotary_embedding.hpp"

/// The layers of a gpt, as its options select them. Their weights are divided over the mesh's group "tp".
///
///     attention_ = register_module("attention", make_attention(options, mesh));
///     values.local = values.local + call(attention_, call(norm_, values), rotation).local;
///
/// Thread rule: modules belong to their rank.
namespace accel::models {

/// Maps hidden states to hidden states.
class HiddenLayer : public torch::nn::Module {
 public:
  virtual HiddenStates forward(const HiddenStates& values) = 0;
};

/// The hidden states, and what the layer adds to the loss: an auxiliary loss of each mixture of experts, shape []. It
/// is an output, not a member of the layer, so that a recomputed forward does not add it twice.
struct LayerOutput {
  HiddenStates values = {};
  std::vector<at::Tensor> auxiliary_losses = {};
};

class FeedForwardLayer : public torch::nn::Module {
 public:
  virtual LayerOutput forward(const HiddenStates& values) = 0;
};

/// Causal self-attention. `rotation` is empty without rotary positions.
class AttentionLayer : public torch::nn::Module {
 public:
  virtual HiddenStates forward(const HiddenStates& values, const Rotation& rotation) = 0;
};

/// LayerNorm or RMSNorm.
std::shared_ptr<HiddenLayer> make_norm(const GptOptions& options, const DeviceMesh& mesh);
/// With learned positions one linear layer computes queries, keys and values. With rotary positions each has its own,
/// as in transformers' Llama.
std::shared_ptr<AttentionLayer> make_attention(const GptOptions& options, const DeviceMesh& mesh);
/// A layer with GELU (tanh approximation) between two linear layers, SwiGLU, or a mixture of such experts.
std::shared_ptr<FeedForwardLayer> make_feed_forward(const GptOptions& options, const DeviceMesh& mesh);

}  // namespace accel::models

template <>
inline constexpr auto accel::tree_members<accel::models::LayerOutput> =
    std::tuple(&accel::models::LayerOutput::values, &accel::models::LayerOutput::auxiliary_losses);
