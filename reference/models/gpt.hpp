#pragma once

#include <memory>
#include <string>

#include "reference/models/gpt_options.hpp"
#include "reference/models/model.hpp"
#include "reference/pipeline/pipeline_model.hpp"

/// Language models: GPT-2's shape, a Llama's, and what is between.
///
///     auto model = accel::models::gpt({.block_size = 128, .layers = 2, .heads = 4, .width = 64});
///     auto logits = model->forward(tokens);
///
/// A Llama that transformers saved:
///
///     const auto options = accel::models::read_llama_config("Llama-3.2-1B");
///     auto llama = accel::init_empty_weights([&] { return accel::models::gpt(options); });
///     accel::load_checkpoint_in_model(*llama, "Llama-3.2-1B", {.strict = true});
///
/// Divided over the ranks of a mesh:
///
///     auto model = accel::models::gpt(options, accelerator.mesh());
///
/// Thread rule: models belong to their rank.
namespace accel {
class DeviceMesh;
}

namespace accel::models {

/// A model that predicts the next token at each position.
class LanguageModel : public Model {
 public:
  /// (B, T) int64 -> (B, T, vocab_size), the logits. Throws ArgumentError if T exceeds block_size.
  at::Tensor forward(const at::Tensor& tokens) override = 0;
  /// The mean cross entropy of the logits and `targets` (B, T), computed by linear_cross_entropy, which does not keep
  /// all logits. A prepared model is called the same way: `model(tokens, targets)`. In training it includes the
  /// auxiliary losses of mixtures of experts, which are not part of the logits.
  virtual at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) = 0;
  /// The same from tokens to logits, in layers for pipeline_model: the embedding, each block, and the output. Throws
  /// ConfigError for a model with experts, whose auxiliary losses no layer passes on.
  [[nodiscard]] virtual std::vector<PipelineLayer> pipeline_layers() = 0;
};

/// A decoder-only transformer. Norms precede attention and feed-forward, whose blocks have the class `Block`, for the
/// options of sharding and device maps that name one.
///
/// With rotary positions, modules have the names of transformers' LlamaForCausalLM, and a model has the initial weights
/// that LlamaForCausalLM draws from the same seed. With learned positions, initialization is GPT-2's: weights of
/// projections that are added to the residual stream start smaller.
///
/// With `num_local_experts` the feed-forward of each block is a mixture of experts, whose module has the name
/// "mixture". Train it with the loss of targets. The auxiliary losses of the layers are added, as in Megatron-LM;
/// transformers' Mixtral computes one of all layers' tokens, and does not divide it by num_experts_per_tok.
///
/// Throws ConfigError that lists all options that are wrong or do not fit together. Source:
/// github.com/karpathy/nanoGPT, model.py; transformers/models/llama/modeling_llama.py; properties/oracle/gpt.py.
std::shared_ptr<LanguageModel> gpt(const GptOptions& options);

/// The same model, divided over each group "tp" of the mesh: a rank has a part of the attention heads, of the features
/// inside the feed-forward, and of the vocabulary. Norms, position embeddings and the biases after a sum are complete
/// on every rank. With `sequence_parallel`, a rank has a part of the positions outside of the divided layers, which
/// saves memory.
///
/// Names and initial weights are those of one rank; logits, losses and gradients too, except for rounding and dropout.
/// parallel::parameter_cuts describes the parts. forward and backward are collective: the ranks of a group pass equal
/// tokens and draw equal random numbers. Logits are complete on every rank. The loss of targets does not assemble them.
///
/// Ranks of "cp" are called with their positions in zigzag order, as maybe_context_parallel divides them, and attention
/// gathers keys and values, or with cp_comm_strategy "alltoall" passes them around a ring. Ranks of "sp" are called
/// with contiguous positions, and attention exchanges heads. Logits and the loss are those of the rank's positions.
///
/// Ranks of "ep" are called with different samples and hold parts of the experts; ranks of "tp" hold complete experts.
/// The auxiliary loss is that of the tokens of all ranks of "dp_cp". With capacity_factor, tokens are dropped by the
/// capacity of each rank, so the results depend on the mesh.
///
/// Also throws ConfigError if `heads`, `key_value_heads`, `feed_forward_width` of a model without experts or
/// `vocab_size` does not divide over the ranks of "tp", or `num_local_experts` over those of "ep", for experts on a
/// mesh with pp ranks, which share out `pipeline_layers`, and for dropout with cp or sp ranks; ArgumentError from
/// forward if a sequence does not divide under `sequence_parallel`. Source: github.com/NVIDIA/Megatron-LM,
/// megatron/core/transformer.
std::shared_ptr<LanguageModel> gpt(const GptOptions& options, const DeviceMesh& mesh);

/// Reads a Llama's config.json, or that of a folder. Unlike LlamaForCausalLM, the model rejects sequences longer than
/// max_position_embeddings.
///
/// Throws ConfigError that lists all problems: a model_type other than llama, a rope_type other than default, linear
/// and llama3, an activation other than silu, attention_bias without mlp_bias or the reverse, dropout of attention
/// weights only, and sizes that do not fit together. Source: transformers/models/llama/configuration_llama.py, for
/// versions 4 and 5.
GptOptions read_llama_config(const std::string& path);

}  // namespace accel::models
