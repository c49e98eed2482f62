#include "reference/models/gpt.hpp"

#include <ATen/ops/arange.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/models/gpt_layers.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/linear_cross_entropy.hpp"

// As in properties/oracle/gpt.py, with which tests compare it. Submodules are created and called in the same order as
// there: creation decides which random numbers a weight gets, calls decide the order of gradients. Submodules are
// called with accel::call, so that blocks can be sharded, recomputed and offloaded.
namespace accel::models {
namespace {

namespace nn = torch::nn;

nn::Embedding token_embedding(const GptOptions& options) {
  return nn::Embedding(nn::EmbeddingOptions(options.vocab_size, options.width).padding_idx(options.padding_token));
}

// Names and their order, which is that of an optimizer's state, depend on the positions.
class BlockImpl : public nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options) {
    if (options.positions == "rotary") {
      attention_ = register_module("self_attn", make_attention(options));
      feed_forward_ = register_module("mlp", make_feed_forward(options));
      attention_norm_ = register_module("input_layernorm", make_norm(options));
      feed_forward_norm_ = register_module("post_attention_layernorm", make_norm(options));
    } else {
      attention_norm_ = register_module("attention_norm", make_norm(options));
      attention_ = register_module("attention", make_attention(options));
      feed_forward_norm_ = register_module("feed_forward_norm", make_norm(options));
      feed_forward_ = register_module("feed_forward", make_feed_forward(options));
    }
  }
  at::Tensor forward(const at::Tensor& values, const Rotation& rotation) {
    // Pre-norm, as in GPT-2: the residual stream itself is never normalized.
    const auto attended = values + call(attention_, call(attention_norm_, values), rotation);
    return attended + call(feed_forward_, call(feed_forward_norm_, attended));
  }

 private:
  std::shared_ptr<HiddenLayer> attention_norm_, feed_forward_norm_, feed_forward_;
  std::shared_ptr<AttentionLayer> attention_;
};
TORCH_MODULE(Block);

// Filled after it is registered: the module list is shared, so later blocks are registered with it.
void add_blocks(nn::ModuleList& blocks, const GptOptions& options) {
  for (std::int64_t layer = 0; layer < options.layers; ++layer) blocks->push_back(Block(options));
}

// Redrawn after construction in the order of named_parameters, as in the oracle.
void draw_weights(const nn::Module& module, double std, double std_of_residual) {
  const c10::NoGradGuard no_grad;
  for (const auto& item : module.named_parameters()) {
    if (item.value().dim() == 1) {
      if (item.key().ends_with("bias")) item.value().zero_();
      continue;
    }
    const bool joins_residual = item.key().ends_with("projection.weight") || item.key().ends_with("down_proj.weight");
    item.value().normal_(0.0, joins_residual ? std_of_residual : std);
  }
}

void clear_padding(const nn::Embedding& embedding, const GptOptions& options) {
  const c10::NoGradGuard no_grad;
  if (options.padding_token) embedding->weight[*options.padding_token].zero_();
}

// The output layer. In a class of its own, since a sharded weight exists only while its module is called.
struct OutputImpl : LinearImpl {
  using LinearImpl::forward;
  using LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& hidden, const at::Tensor& targets) {
    return linear_cross_entropy(hidden, weight, targets);
  }
};
TORCH_MODULE(Output);

Output output_layer(const GptOptions& options) {
  return Output(nn::LinearOptions(options.width, options.vocab_size).bias(false));
}

// From tokens to the logits or the loss, for both namings of modules.
class Gpt : public LanguageModel {
 public:
  at::Tensor forward(const at::Tensor& tokens) override {
    const auto hidden = checked_hidden_states(tokens);
    // Weight tying: the embedding's gradient is the sum of both uses.
    return output_ ? call(output_, hidden) : at::linear(hidden, embedding_->weight);
  }
  at::Tensor forward(const at::Tensor& tokens, const at::Tensor& targets) override {
    const auto hidden = checked_hidden_states(tokens);
    return output_ ? call(output_, hidden, targets) : linear_cross_entropy(hidden, embedding_->weight, targets);
  }

 protected:
  explicit Gpt(const GptOptions& options) : block_size_(options.block_size) {}
  virtual at::Tensor hidden_states(const at::Tensor& tokens) = 0;

  nn::Embedding embedding_{nullptr};
  Output output_{nullptr};  // null if it is the embedding

 private:
  at::Tensor checked_hidden_states(const at::Tensor& tokens) {
    check_argument(tokens.size(1) <= block_size_, "gpt: sequence of {} tokens; expected at most {}, the block_size",
                   tokens.size(1), block_size_);
    return hidden_states(tokens);
  }

  std::int64_t block_size_;
};

class LearnedPositionsGpt : public Gpt {
 public:
  explicit LearnedPositionsGpt(const GptOptions& options) : Gpt(options) {
    embedding_ = register_module("byte_embedding", token_embedding(options));
    position_embedding_ = register_module("position_embedding", nn::Embedding(options.block_size, options.width));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
    register_module("blocks", blocks_);
    add_blocks(blocks_, options);
    norm_ = register_module("norm", make_norm(options));
    if (!options.tied_output) output_ = register_module("output", output_layer(options));
    // GPT-2's initialization. Projections that are added to the residual stream start smaller, so that its variance
    // does not grow with depth.
    draw_weights(*this, options.initial_std, options.initial_std / std::sqrt(static_cast<double>(2 * options.layers)));
    clear_padding(embedding_, options);
  }

 private:
  at::Tensor hidden_states(const at::Tensor& tokens) override {
    // Two declarators, not two arguments of one call: the embeddings must be called in this order.
    const auto bytes = call(embedding_, tokens),
               positions = call(position_embedding_, at::arange(tokens.size(1), tokens.options()));
    auto values = dropout_(bytes + positions);
    for (const auto& block : *blocks_) values = call(block->as<BlockImpl>(), values, Rotation());
    return call(norm_, values);
  }

  nn::Embedding position_embedding_{nullptr};
  nn::Dropout dropout_{nullptr};
  nn::ModuleList blocks_;
  std::shared_ptr<HiddenLayer> norm_;
};

// transformers' LlamaModel.
class DecoderImpl : public nn::Module {
 public:
  explicit DecoderImpl(const GptOptions& options) : rotary_(sizes_of(options).head_width, options.rope_parameters) {
    embedding = register_module("embed_tokens", token_embedding(options));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
    register_module("layers", layers_);
    add_blocks(layers_, options);
    norm_ = register_module("norm", make_norm(options));
  }

  at::Tensor forward(const at::Tensor& tokens) {
    auto values = dropout_(call(embedding, tokens));
    const auto rotation = rotary_.of_positions(tokens.size(1), values);
    for (const auto& layer : *layers_) values = call(layer->as<BlockImpl>(), values, rotation);
    return call(norm_, values);
  }

  nn::Embedding embedding{nullptr};

 private:
  RotaryEmbedding rotary_;
  nn::Dropout dropout_{nullptr};
  nn::ModuleList layers_;
  std::shared_ptr<HiddenLayer> norm_;
};
TORCH_MODULE(Decoder);

// transformers' LlamaForCausalLM.
class RotaryGpt : public Gpt {
 public:
  explicit RotaryGpt(const GptOptions& options) : Gpt(options) {
    const auto std = options.initial_std;
    model_ = register_module("model", Decoder(options));
    embedding_ = model_->embedding;
    draw_weights(*model_, std, std);
    // After the decoder's weights, and also if it is tied, as transformers draws them.
    auto output = output_layer(options);
    draw_weights(*output, std, std);
    if (!options.tied_output) output_ = register_module("lm_head", output);
    clear_padding(embedding_, options);
  }

 private:
  at::Tensor hidden_states(const at::Tensor& tokens) override { return call(model_, tokens); }

  Decoder model_{nullptr};
};

}  // namespace

std::shared_ptr<LanguageModel> gpt(const GptOptions& options) {
  check(options);
  if (options.positions == "rotary") return std::make_shared<RotaryGpt>(options);
  return std::make_shared<LearnedPositionsGpt>(options);
}

}  // namespace accel::models
