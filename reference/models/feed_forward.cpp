#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>

#include "reference/experts/mixture_of_experts.hpp"
#include "reference/models/gpt_layers.hpp"
#include "reference/modules/call.hpp"

namespace accel::models {
namespace {

namespace nn = torch::nn;
using parallel::ColumnParallelLinear, parallel::ExpertActivation, parallel::MixtureOfExperts,
    parallel::RowParallelLinear, parallel::Sharded;

parallel::ParallelLinearOptions to_inner(const GptOptions& options) {
  return {.in = options.width, .out = sizes_of(options).feed_forward_width, .bias = options.bias};
}
parallel::ParallelLinearOptions from_inner(const GptOptions& options) {
  return {.in = sizes_of(options).feed_forward_width, .out = options.width, .bias = options.bias};
}

class FeedForwardImpl : public FeedForwardLayer {
 public:
  FeedForwardImpl(const GptOptions& options, const DeviceMesh& mesh) : stream_(options, mesh) {
    expansion_ = register_module("expansion", ColumnParallelLinear(to_inner(options), stream_.group()));
    projection_ = register_module("projection", RowParallelLinear(from_inner(options), stream_.group()));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }
  LayerOutput forward(const HiddenStates& values) override {
    const auto expanded = call(expansion_, stream_.enter(values));
    const auto activated = elementwise(expanded, [](const at::Tensor& local) { return at::gelu(local, "tanh"); });
    return {stream_.drop(dropout_, stream_.leave(projection_, activated))};
  }

 private:
  ResidualStream stream_;
  ColumnParallelLinear expansion_{nullptr};
  RowParallelLinear projection_{nullptr};
  nn::Dropout dropout_{nullptr};
};

// Source: transformers/models/llama/modeling_llama.py, LlamaMLP, whose names it uses.
class SwiGLUImpl : public FeedForwardLayer {
 public:
  SwiGLUImpl(const GptOptions& options, const DeviceMesh& mesh) : stream_(options, mesh) {
    gate_ = register_module("gate_proj", ColumnParallelLinear(to_inner(options), stream_.group()));
    up_ = register_module("up_proj", ColumnParallelLinear(to_inner(options), stream_.group()));
    down_ = register_module("down_proj", RowParallelLinear(from_inner(options), stream_.group()));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }
  LayerOutput forward(const HiddenStates& values) override {
    const auto entered = stream_.enter(values);
    const auto gate = at::silu(call(gate_, entered).local);
    return {stream_.drop(dropout_, stream_.leave(down_, Sharded<-1>{gate * call(up_, entered).local}))};
  }

 private:
  ResidualStream stream_;
  ColumnParallelLinear gate_{nullptr}, up_{nullptr};
  RowParallelLinear down_{nullptr};
  nn::Dropout dropout_{nullptr};
};

// Tensor-parallel ranks hold complete experts and pass all tokens of their group, so their gradients are equal.
class MixtureImpl : public FeedForwardLayer {
 public:
  MixtureImpl(const GptOptions& options, const DeviceMesh& mesh) : stream_(options, mesh) {
    mixture_ = register_module(
        "mixture",
        MixtureOfExperts(
            parallel::MixtureOfExpertsOptions{
                .width = options.width,
                .inner = sizes_of(options).feed_forward_width,
                .num_experts = *options.num_local_experts,
                .top_k = options.num_experts_per_tok,
                .activation = options.feed_forward == "swiglu" ? ExpertActivation::kSwiGLU : ExpertActivation::kGelu,
                .bias = options.bias,
                .capacity_factor = options.capacity_factor,
                .normalize_gates = options.num_experts_per_tok > 1,
                .aux_loss_weight = options.router_aux_loss_coef},
            mesh));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }
  LayerOutput forward(const HiddenStates& values) override {
    const auto [mixed, auxiliary_loss] = call(mixture_, parallel::Replicated{stream_.complete(values)});
    return {stream_.drop(dropout_, stream_.own_part(mixed.local)), {auxiliary_loss}};
  }

 private:
  ResidualStream stream_;
  MixtureOfExperts mixture_{nullptr};
  nn::Dropout dropout_{nullptr};
};

}  // namespace

std::shared_ptr<FeedForwardLayer> make_feed_forward(const GptOptions& options, const DeviceMesh& mesh) {
  if (options.num_local_experts) return std::make_shared<MixtureImpl>(options, mesh);
  if (options.feed_forward == "swiglu") return std::make_shared<SwiGLUImpl>(options, mesh);
  return std::make_shared<FeedForwardImpl>(options, mesh);
}

}  // namespace accel::models
