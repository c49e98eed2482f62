#include "reference/models/gpt.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>

#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/modules/call.hpp"

// GPT as in properties/oracle/gpt.py, with which tests compare it. Submodules are created and called in the same order
// as there: creation decides which random numbers a weight gets, calls decide the order of gradients. Submodules are
// called with accel::call, so that blocks can be sharded, recomputed and offloaded.
namespace accel::models {
namespace {

namespace nn = torch::nn;

// models::Linear, which computes like Python's: see model.hpp.
Linear linear(std::int64_t inputs, std::int64_t outputs, const GptOptions& options) {
  return Linear(nn::LinearOptions(inputs, outputs).bias(options.bias));
}

// LibTorch's LayerNorm has no option to omit the bias.
class LayerNormImpl : public nn::Module {
 public:
  explicit LayerNormImpl(const GptOptions& options) {
    weight_ = register_parameter("weight", at::ones(options.width));
    if (options.bias) bias_ = register_parameter("bias", at::zeros(options.width));
  }
  at::Tensor forward(const at::Tensor& values) { return at::layer_norm(values, weight_.sizes(), weight_, bias_); }

 private:
  at::Tensor weight_, bias_;
};
TORCH_MODULE(LayerNorm);

class AttentionImpl : public nn::Module {
 public:
  explicit AttentionImpl(const GptOptions& options) : heads_(options.heads), probability_(options.dropout) {
    queries_keys_values_ = register_module("queries_keys_values", linear(options.width, 3 * options.width, options));
    projection_ = register_module("projection", linear(options.width, options.width, options));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }

  at::Tensor forward(const at::Tensor& values) {
    const auto batch = values.size(0), length = values.size(1), width = values.size(2);
    // One product for queries, keys and values, as in nanoGPT: larger matrices, and one bucket entry instead of three.
    const auto parts = call(queries_keys_values_, values).split(width, 2);
    const auto by_head = [&](const at::Tensor& part) {
      // (B, T, width) -> (B, heads, T, width / heads), the layout of scaled_dot_product_attention.
      return part.view({batch, length, heads_, width / heads_}).transpose(1, 2);
    };
    const auto queries = by_head(parts[0]), keys = by_head(parts[1]), mixed = by_head(parts[2]);
    // The functional has no training flag; dropout must be switched off explicitly in evaluation.
    const auto seen = at::scaled_dot_product_attention(queries, keys, mixed, /*attn_mask=*/{},
                                                       is_training() ? probability_ : 0.0, /*is_causal=*/true);
    return dropout_(call(projection_, seen.transpose(1, 2).contiguous().view({batch, length, width})));
  }

 private:
  std::int64_t heads_;
  double probability_;
  Linear queries_keys_values_{nullptr}, projection_{nullptr};
  nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(Attention);

class FeedForwardImpl : public nn::Module {
 public:
  explicit FeedForwardImpl(const GptOptions& options) {
    expansion_ = register_module("expansion", linear(options.width, 4 * options.width, options));
    projection_ = register_module("projection", linear(4 * options.width, options.width, options));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }
  at::Tensor forward(const at::Tensor& values) {
    return dropout_(call(projection_, at::gelu(call(expansion_, values), "tanh")));
  }

 private:
  Linear expansion_{nullptr}, projection_{nullptr};
  nn::Dropout dropout_{nullptr};
};
TORCH_MODULE(FeedForward);

class BlockImpl : public nn::Module {
 public:
  explicit BlockImpl(const GptOptions& options) {
    attention_norm_ = register_module("attention_norm", LayerNorm(options));
    attention_ = register_module("attention", Attention(options));
    feed_forward_norm_ = register_module("feed_forward_norm", LayerNorm(options));
    feed_forward_ = register_module("feed_forward", FeedForward(options));
  }
  at::Tensor forward(const at::Tensor& values) {
    // Pre-norm, as in GPT-2: the residual stream itself is never normalized.
    const auto attended = values + call(attention_, call(attention_norm_, values));
    return attended + call(feed_forward_, call(feed_forward_norm_, attended));
  }

 private:
  LayerNorm attention_norm_{nullptr}, feed_forward_norm_{nullptr};
  Attention attention_{nullptr};
  FeedForward feed_forward_{nullptr};
};
TORCH_MODULE(Block);

class Gpt : public Model {
 public:
  explicit Gpt(const GptOptions& options) : block_size_(options.block_size) {
    byte_embedding_ = register_module("byte_embedding", nn::Embedding(options.vocab_size, options.width));
    position_embedding_ = register_module("position_embedding", nn::Embedding(options.block_size, options.width));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
    // Registered before it is filled: the module list is shared, so later blocks are registered with it.
    register_module("blocks", blocks_);
    for (std::int64_t layer = 0; layer < options.layers; ++layer) blocks_->push_back(Block(options));
    norm_ = register_module("norm", LayerNorm(options));
    draw_weights(options.layers);
  }

  at::Tensor forward(const at::Tensor& inputs) override {
    const auto length = inputs.size(1);
    check_argument(length <= block_size_, "gpt: sequence of {} tokens; expected at most {}, the block_size", length,
                   block_size_);
    // Two declarators, not two arguments of one call: the embeddings must be called in this order.
    const auto bytes = call(byte_embedding_, inputs),
               positions = call(position_embedding_, at::arange(length, inputs.options()));
    auto values = dropout_(bytes + positions);
    for (const auto& block : *blocks_) values = call(block->as<BlockImpl>(), values);
    // Weight tying: the embedding's gradient is the sum of both uses.
    return at::linear(call(norm_, values), byte_embedding_->weight);
  }

 private:
  // GPT-2's initialization. Projections that are added to the residual stream start smaller, so that its variance does
  // not grow with depth. Redrawn after construction in the order of named_parameters, as in the oracle.
  void draw_weights(std::int64_t num_layers) {
    const c10::NoGradGuard no_grad;
    for (const auto& item : named_parameters()) {
      if (item.value().dim() == 1) {
        if (item.key().ends_with("bias")) item.value().zero_();
        continue;
      }
      const bool joins_residual = item.key().ends_with("projection.weight");
      item.value().normal_(0.0, joins_residual ? 0.02 / std::sqrt(static_cast<double>(2 * num_layers)) : 0.02);
    }
  }

  std::int64_t block_size_;
  nn::Embedding byte_embedding_{nullptr}, position_embedding_{nullptr};
  nn::Dropout dropout_{nullptr};
  nn::ModuleList blocks_;
  LayerNorm norm_{nullptr};
};

}  // namespace

std::shared_ptr<Model> gpt(const GptOptions& options) {
  check_argument(options.heads >= 1 && options.width % options.heads == 0,
                 "gpt: width {} is not divisible by {} heads; expected a multiple of {}", options.width, options.heads,
                 options.heads);
  return std::make_shared<Gpt>(options);
}

}  // namespace accel::models
