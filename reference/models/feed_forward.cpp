#include <ATen/ops/gelu.h>
#include <ATen/ops/silu.h>
#include <torch/nn/modules/dropout.h>

#include "reference/models/gpt_layers.hpp"
#include "reference/modules/call.hpp"

namespace accel::models {
namespace {

namespace nn = torch::nn;

class FeedForwardImpl : public HiddenLayer {
 public:
  explicit FeedForwardImpl(const GptOptions& options) {
    const auto inner = sizes_of(options).feed_forward_width;
    expansion_ = register_module("expansion", Linear(nn::LinearOptions(options.width, inner).bias(options.bias)));
    projection_ = register_module("projection", Linear(nn::LinearOptions(inner, options.width).bias(options.bias)));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }
  at::Tensor forward(const at::Tensor& values) override {
    return dropout_(call(projection_, at::gelu(call(expansion_, values), "tanh")));
  }

 private:
  Linear expansion_{nullptr}, projection_{nullptr};
  nn::Dropout dropout_{nullptr};
};

// Source: transformers/models/llama/modeling_llama.py, LlamaMLP, whose names it uses.
class SwiGLUImpl : public HiddenLayer {
 public:
  explicit SwiGLUImpl(const GptOptions& options) {
    const auto inner = sizes_of(options).feed_forward_width;
    gate_ = register_module("gate_proj", Linear(nn::LinearOptions(options.width, inner).bias(options.bias)));
    up_ = register_module("up_proj", Linear(nn::LinearOptions(options.width, inner).bias(options.bias)));
    down_ = register_module("down_proj", Linear(nn::LinearOptions(inner, options.width).bias(options.bias)));
    dropout_ = register_module("dropout", nn::Dropout(options.dropout));
  }
  at::Tensor forward(const at::Tensor& values) override {
    const auto gate = at::silu(call(gate_, values));
    return dropout_(call(down_, gate * call(up_, values)));
  }

 private:
  Linear gate_{nullptr}, up_{nullptr}, down_{nullptr};
  nn::Dropout dropout_{nullptr};
};

}  // namespace

std::shared_ptr<HiddenLayer> make_feed_forward(const GptOptions& options) {
  if (options.feed_forward == "swiglu") return std::make_shared<SwiGLUImpl>(options);
  return std::make_shared<FeedForwardImpl>(options);
}

}  // namespace accel::models
