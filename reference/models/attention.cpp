#include <cmath>

#include "reference/models/gpt_layers.hpp"
#include "reference/models/sequence_parts.hpp"
#include "reference/modules/call.hpp"
#include "reference/tensor_parallel/cut_random.hpp"

namespace accel::models {
namespace {

namespace nn = torch::nn;
using parallel::ColumnParallelLinear, parallel::RowParallelLinear, parallel::Sharded;

// (B, T, heads * head_width) -> (B, heads, T, head_width), the layout of scaled_dot_product_attention, and back.
at::Tensor by_head(const at::Tensor& values, std::int64_t head_width) {
  return values.view({values.size(0), values.size(1), values.size(2) / head_width, head_width}).transpose(1, 2);
}
Sharded<-1> joined_heads(const at::Tensor& values) { return {values.transpose(1, 2).contiguous().flatten(2)}; }

// Each rank computes a part of the heads, for all positions.
class CausalAttention : public AttentionLayer {
 protected:
  CausalAttention(const GptOptions& options, const DeviceMesh& mesh)
      : head_width_(sizes_of(options).head_width),
        query_width_(options.heads * head_width_),
        key_width_(sizes_of(options).key_value_heads * head_width_),
        stream_(options, mesh),
        parts_(mesh),
        probability_(options.dropout) {}

  // (B, heads, T, head_width). The only function in which positions exchange values.
  [[nodiscard]] at::Tensor attended(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                                    std::optional<double> scale) const {
    // The functional has no training flag; dropout must be switched off explicitly in evaluation.
    const auto probability = is_training() ? probability_ : 0.0;
    std::optional<parallel::CutRandom> random;
    if (probability > 0) random.emplace(stream_.group());
    return parts_.attended(queries, keys, values,
                           {.dropout = probability, .scale = scale, .enable_gqa = key_width_ < query_width_});
  }

  std::int64_t head_width_, query_width_, key_width_;  // of the complete layer
  ResidualStream stream_;

 private:
  SequenceParts parts_;
  double probability_;
};

class AttentionImpl : public CausalAttention {
 public:
  AttentionImpl(const GptOptions& options, const DeviceMesh& mesh) : CausalAttention(options, mesh) {
    queries_keys_values_ = register_module(
        "queries_keys_values",
        ColumnParallelLinear(parallel::ParallelLinearOptions{.in = options.width,
                                                             .out = query_width_ + 2 * key_width_,
                                                             .bias = options.bias,
                                                             .sections = {query_width_, key_width_, key_width_}},
                             stream_.group()));
    projection_ = register_module("projection", RowParallelLinear(
                                                    parallel::ParallelLinearOptions{
                                                        .in = query_width_, .out = options.width, .bias = options.bias},
                                                    stream_.group()));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }

  HiddenStates forward(const HiddenStates& values, const Rotation& /*rotation*/) override {
    const auto query_width = query_width_ / stream_.group().size(), key_width = key_width_ / stream_.group().size();
    // One product for queries, keys and values, as in nanoGPT: larger matrices, and one bucket entry instead of three.
    const auto parts = call(queries_keys_values_, stream_.enter(values))
                           .local.split_with_sizes({query_width, key_width, key_width}, 2);
    const auto queries = by_head(parts[0], head_width_), keys = by_head(parts[1], head_width_),
               mixed = by_head(parts[2], head_width_);
    const auto seen = attended(queries, keys, mixed, /*scale=*/{});
    return stream_.drop(dropout_, stream_.leave(projection_, joined_heads(seen)));
  }

 private:
  ColumnParallelLinear queries_keys_values_{nullptr};
  RowParallelLinear projection_{nullptr};
  nn::Dropout dropout_{nullptr};
};

// Source: transformers/models/llama/modeling_llama.py, LlamaAttention, whose names it uses;
// transformers/integrations/sdpa_attention.py.
class RotaryAttentionImpl : public CausalAttention {
 public:
  RotaryAttentionImpl(const GptOptions& options, const DeviceMesh& mesh) : CausalAttention(options, mesh) {
    const auto from_hidden = [&](std::int64_t out) {
      return ColumnParallelLinear(
          parallel::ParallelLinearOptions{.in = options.width, .out = out, .bias = options.bias}, stream_.group());
    };
    queries_ = register_module("q_proj", from_hidden(query_width_));
    keys_ = register_module("k_proj", from_hidden(key_width_));
    values_ = register_module("v_proj", from_hidden(key_width_));
    output_ = register_module(
        "o_proj", RowParallelLinear(
                      parallel::ParallelLinearOptions{.in = query_width_, .out = options.width, .bias = options.bias},
                      stream_.group()));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }

  HiddenStates forward(const HiddenStates& values, const Rotation& rotation) override {
    const auto entered = stream_.enter(values);
    const auto unrotated_queries = by_head(call(queries_, entered).local, head_width_);
    const auto unrotated_keys = by_head(call(keys_, entered).local, head_width_);
    const auto mixed = by_head(call(values_, entered).local, head_width_);
    const auto queries = rotated(unrotated_queries, rotation), keys = rotated(unrotated_keys, rotation);
    const auto seen = attended(queries, keys, mixed, std::pow(static_cast<double>(head_width_), -0.5));
    return stream_.drop(dropout_, stream_.leave(output_, joined_heads(seen)));
  }

 private:
  ColumnParallelLinear queries_{nullptr}, keys_{nullptr}, values_{nullptr};
  RowParallelLinear output_{nullptr};
  nn::Dropout dropout_{nullptr};
};

}  // namespace

std::shared_ptr<AttentionLayer> make_attention(const GptOptions& options, const DeviceMesh& mesh) {
  if (options.positions == "rotary") return std::make_shared<RotaryAttentionImpl>(options, mesh);
  return std::make_shared<AttentionImpl>(options, mesh);
}

}  // namespace accel::models
