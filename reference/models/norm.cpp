#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include "reference/models/gpt_layers.hpp"

namespace accel::models {
namespace {

// LibTorch's LayerNorm has no option to omit the bias.
class LayerNormImpl : public HiddenLayer {
 public:
  explicit LayerNormImpl(const GptOptions& options) : eps_(options.norm_eps) {
    weight_ = register_parameter("weight", at::ones(options.width));
    if (options.bias) bias_ = register_parameter("bias", at::zeros(options.width));
  }
  at::Tensor forward(const at::Tensor& values) override {
    return at::layer_norm(values, weight_.sizes(), weight_, bias_, eps_);
  }

 private:
  at::Tensor weight_, bias_;
  double eps_;
};

// Source: transformers/models/llama/modeling_llama.py, LlamaRMSNorm. Not at::rms_norm, which rounds otherwise.
class RMSNormImpl : public HiddenLayer {
 public:
  explicit RMSNormImpl(const GptOptions& options) : eps_(options.norm_eps) {
    weight_ = register_parameter("weight", at::ones(options.width));
  }
  at::Tensor forward(const at::Tensor& values) override {
    const auto exact = values.to(at::kFloat);
    const auto variance = exact.pow(2).mean(-1, /*keepdim=*/true);
    return weight_ * (exact * at::rsqrt(variance + eps_)).to(values.scalar_type());
  }

 private:
  at::Tensor weight_;
  double eps_;
};

}  // namespace

std::shared_ptr<HiddenLayer> make_norm(const GptOptions& options) {
  if (options.norm == "rms_norm") return std::make_shared<RMSNormImpl>(options);
  return std::make_shared<LayerNormImpl>(options);
}

}  // namespace accel::models
