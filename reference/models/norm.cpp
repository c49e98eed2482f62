#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/promote_types.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "reference/models/gpt_layers.hpp"

namespace accel::models {
namespace {

// LibTorch's LayerNorm has no option to omit the bias.
class LayerNormImpl : public HiddenLayer {
 public:
  LayerNormImpl(const GptOptions& options, const DeviceMesh& mesh) : stream_(options, mesh), eps_(options.norm_eps) {
    weight_ = register_parameter("weight", at::ones(options.width));
    if (options.bias) bias_ = register_parameter("bias", at::zeros(options.width));
  }
  HiddenStates forward(const HiddenStates& values) override {
    return {at::layer_norm(values.local, weight_.sizes(), stream_.parameter(weight_), stream_.parameter(bias_), eps_)};
  }

 private:
  ResidualStream stream_;
  at::Tensor weight_, bias_;
  double eps_;
};

// Source: transformers/models/llama/modeling_llama.py, LlamaRMSNorm. Not at::rms_norm, which rounds otherwise.
class RMSNormImpl : public HiddenLayer {
 public:
  RMSNormImpl(const GptOptions& options, const DeviceMesh& mesh) : stream_(options, mesh), eps_(options.norm_eps) {
    weight_ = register_parameter("weight", at::ones(options.width));
  }
  HiddenStates forward(const HiddenStates& values) override {
    const auto type = values.local.scalar_type();
    const auto exact = values.local.to(at::promote_types(type, at::kFloat));
    const auto variance = exact.pow(2).mean(-1, /*keepdim=*/true);
    return {stream_.parameter(weight_) * (exact * at::rsqrt(variance + eps_)).to(type)};
  }

 private:
  ResidualStream stream_;
  at::Tensor weight_;
  double eps_;
};

}  // namespace

std::shared_ptr<HiddenLayer> make_norm(const GptOptions& options, const DeviceMesh& mesh) {
  if (options.norm == "rms_norm") return std::make_shared<RMSNormImpl>(options, mesh);
  return std::make_shared<LayerNormImpl>(options, mesh);
}

}  // namespace accel::models
