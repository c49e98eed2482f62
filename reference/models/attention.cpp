#include <ATen/ops/scaled_dot_product_attention.h>
#include <torch/nn/modules/dropout.h>

#include <cmath>

#include "reference/models/gpt_layers.hpp"
#include "reference/modules/call.hpp"

namespace accel::models {
namespace {

namespace nn = torch::nn;

// (B, T, heads * head_width) -> (B, heads, T, head_width), the layout of scaled_dot_product_attention, and back.
at::Tensor by_head(const at::Tensor& values, std::int64_t head_width) {
  return values.view({values.size(0), values.size(1), values.size(2) / head_width, head_width}).transpose(1, 2);
}
at::Tensor joined_heads(const at::Tensor& values) { return values.transpose(1, 2).contiguous().flatten(2); }

class AttentionImpl : public AttentionLayer {
 public:
  explicit AttentionImpl(const GptOptions& options)
      : head_width_(sizes_of(options).head_width), probability_(options.dropout) {
    query_width_ = options.heads * head_width_;
    key_width_ = sizes_of(options).key_value_heads * head_width_;
    queries_keys_values_ =
        register_module("queries_keys_values",
                        Linear(nn::LinearOptions(options.width, query_width_ + 2 * key_width_).bias(options.bias)));
    projection_ =
        register_module("projection", Linear(nn::LinearOptions(query_width_, options.width).bias(options.bias)));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }

  at::Tensor forward(const at::Tensor& values, const Rotation& /*rotation*/) override {
    // One product for queries, keys and values, as in nanoGPT: larger matrices, and one bucket entry instead of three.
    const auto parts = call(queries_keys_values_, values).split_with_sizes({query_width_, key_width_, key_width_}, 2);
    const auto queries = by_head(parts[0], head_width_), keys = by_head(parts[1], head_width_),
               mixed = by_head(parts[2], head_width_);
    // The functional has no training flag; dropout must be switched off explicitly in evaluation.
    const auto seen = at::scaled_dot_product_attention(queries, keys, mixed, /*attn_mask=*/{},
                                                       is_training() ? probability_ : 0.0, /*is_causal=*/true,
                                                       /*scale=*/{}, /*enable_gqa=*/key_width_ < query_width_);
    return dropout_(call(projection_, joined_heads(seen)));
  }

 private:
  std::int64_t head_width_, query_width_, key_width_;
  double probability_;
  Linear queries_keys_values_{nullptr}, projection_{nullptr};
  nn::Dropout dropout_{nullptr};
};

// Source: transformers/models/llama/modeling_llama.py, LlamaAttention, whose names it uses;
// transformers/integrations/sdpa_attention.py.
class RotaryAttentionImpl : public AttentionLayer {
 public:
  explicit RotaryAttentionImpl(const GptOptions& options)
      : head_width_(sizes_of(options).head_width), probability_(options.dropout) {
    const auto query_width = options.heads * head_width_, key_width = sizes_of(options).key_value_heads * head_width_;
    shares_keys_ = key_width < query_width;
    queries_ = register_module("q_proj", Linear(nn::LinearOptions(options.width, query_width).bias(options.bias)));
    keys_ = register_module("k_proj", Linear(nn::LinearOptions(options.width, key_width).bias(options.bias)));
    values_ = register_module("v_proj", Linear(nn::LinearOptions(options.width, key_width).bias(options.bias)));
    output_ = register_module("o_proj", Linear(nn::LinearOptions(query_width, options.width).bias(options.bias)));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }

  at::Tensor forward(const at::Tensor& values, const Rotation& rotation) override {
    const auto unrotated_queries = by_head(call(queries_, values), head_width_);
    const auto unrotated_keys = by_head(call(keys_, values), head_width_);
    const auto mixed = by_head(call(values_, values), head_width_);
    const auto queries = rotated(unrotated_queries, rotation), keys = rotated(unrotated_keys, rotation);
    const auto seen = at::scaled_dot_product_attention(
        queries, keys, mixed, /*attn_mask=*/{}, is_training() ? probability_ : 0.0,
        /*is_causal=*/values.size(1) > 1, /*scale=*/std::pow(static_cast<double>(head_width_), -0.5),
        /*enable_gqa=*/shares_keys_);
    return dropout_(call(output_, joined_heads(seen)));
  }

 private:
  std::int64_t head_width_;
  double probability_;
  bool shares_keys_ = false;
  Linear queries_{nullptr}, keys_{nullptr}, values_{nullptr}, output_{nullptr};
  nn::Dropout dropout_{nullptr};
};

}  // namespace

std::shared_ptr<AttentionLayer> make_attention(const GptOptions& options) {
  if (options.positions == "rotary") return std::make_shared<RotaryAttentionImpl>(options);
  return std::make_shared<AttentionImpl>(options);
}

}  // namespace accel::models
