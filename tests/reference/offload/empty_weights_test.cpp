// Models without memory (meta tensors), and filling them later. Building a model must not allocate its weights.
#include "reference/offload/empty_weights.hpp"

#include <gmock/gmock.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include "reference/core/errors.hpp"
#include "reference/offload/module_tensors.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

// A module whose constructor also computes with a buffer, which must not be empty then.
struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(int64_t size)
      : linear(register_module("linear", torch::nn::Linear(size, size))),
        norm(register_module("norm", torch::nn::BatchNorm1d(4))),
        mask(register_buffer("mask", torch::ones({4, 4}).tril(-1) * 2)),
        scale(register_parameter("scale", torch::tensor({1.f, 2.f}))) {
    mask.select(0, 0).fill_(7);
  }
  torch::nn::Linear linear;
  torch::nn::BatchNorm1d norm;
  torch::Tensor mask, scale;
};
TORCH_MODULE(Masked);

// Buffers such as masks are computed by constructors, and no checkpoint restores them.
TEST(EmptyWeightsTest, ParametersHaveNoMemoryAndBuffersKeepTheirValues) {
  const Masked whole(3);
  const auto net = init_empty_weights([] { return Masked(3); }, {.include_buffers = false});
  for (const auto& item : net->named_parameters())
    EXPECT_TRUE(item.value().is_meta() && item.value().requires_grad()) << item.key();
  EXPECT_EQ(net->parameters().size(), 5u);
  for (const auto& item : net->named_buffers()) {
    ASSERT_TRUE(item.value().is_cpu()) << item.key();
    EXPECT_TRUE(item.value().equal(whole->named_buffers()[item.key()])) << item.key();
  }
  EXPECT_TRUE(net->mask.equal(whole->mask)) << "the module's own member too";
  EXPECT_TRUE(torch::empty(1).is_cpu()) << "the scope is over";
}

// By default only parameters are empty, as in Accelerate.
TEST(EmptyWeightsTest, BuffersAreIncludedOnRequest) {
  const auto net = init_empty_weights([] { return Masked(3); }, {.include_buffers = true});
  for (const auto& buffer : net->buffers()) EXPECT_TRUE(buffer.is_meta());
}

// The weights would need 4 TB.
TEST(EmptyWeightsTest, AModelOfAnySizeIsBuiltImmediately) {
  const auto net = init_empty_weights([] {
    torch::nn::Sequential blocks;
    for (int i = 0; i < 100; ++i) blocks->push_back(torch::nn::Linear(100'000, 100'000));
    return blocks;
  });
  EXPECT_EQ(net->parameters()[0].numel(), 10'000'000'000);
}

// Their constructors initialize weights in different ways, all of which must work on meta tensors.
TEST(EmptyWeightsTest, LayersOfLibTorchAreBuiltWithoutMemory) {
  const auto net = init_empty_weights([] {
    torch::nn::Sequential layers;
    layers->push_back(torch::nn::Conv2d(3, 4, 3));
    layers->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({4})));
    layers->push_back(torch::nn::Embedding(10, 4));
    layers->push_back(torch::nn::LSTM(4, 4));
    layers->push_back(torch::nn::TransformerEncoderLayer(8, 2));
    layers->push_back(torch::nn::MultiheadAttention(8, 2));
    return layers;
  });
  for (const auto& item : net->named_parameters()) EXPECT_TRUE(item.value().is_meta()) << item.key();
}

// The device is a property of the thread and would affect all later modules.
TEST(EmptyWeightsTest, AnExceptionRestoresTheThread) {
  EXPECT_THROW(init_empty_weights([]() -> torch::nn::Linear { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_TRUE(torch::nn::Linear(2, 2)->weight.is_cpu());
}

// An inner scope that wants a real device must get it, and the outer one must be in force again afterwards.
TEST(EmptyWeightsTest, ScopesNest) {
  const auto net = init_empty_weights([] {
    const auto inner = init_on_device(at::kCPU, [] { return torch::nn::Linear(2, 2); });
    EXPECT_TRUE(inner->weight.is_cpu());
    return torch::nn::Linear(2, 2);
  });
  EXPECT_TRUE(net->weight.is_meta());
}

// A tied weight has several names and is one object, so it must be replaced in place.
TEST(ModuleTensorsTest, ATensorIsSetUnderAllItsNames) {
  torch::nn::Linear linear(3, 2);
  torch::nn::Sequential net(linear, linear);
  const auto values = torch::rand({2, 3});
  set_module_tensor_to_device(*net, "0.weight", at::kMeta);
  EXPECT_TRUE(linear->weight.is_meta() && linear->weight.requires_grad());
  EXPECT_THROW(set_module_tensor_to_device(*net, "0.weight", at::kCPU), ArgumentError);
  EXPECT_THROW(set_module_tensor_to_device(*net, "0.weight", at::kCPU, {.value = torch::rand({3, 2})}), ArgumentError);
  EXPECT_THROW(set_module_tensor_to_device(*net, "0.weights", at::kCPU, {.value = values}), ArgumentError);
  set_module_tensor_to_device(*net, "1.weight", at::kCPU, {.value = values.to(torch::kDouble)});
  EXPECT_TRUE(linear->weight.equal(values)) << "in the tensor's dtype";
  set_module_tensor_to_device(*net, "1.weight", at::kCPU, {.value = values, .dtype = at::kHalf});
  EXPECT_EQ(linear->weight.scalar_type(), at::kHalf);
}

// A gradient function that was created earlier must notice the new device.
TEST(ModuleTensorsTest, AFilledModelTrains) {
  auto linear = init_empty_weights([] { return torch::nn::Linear(3, 2); });
  linear(torch::rand({1, 3}).to(at::kMeta)).sum();
  const auto weight = torch::rand({2, 3}), input = torch::rand({4, 3});
  set_module_tensor_to_device(*linear, "weight", at::kCPU, {.value = weight});
  set_module_tensor_to_device(*linear, "bias", at::kCPU, {.value = torch::zeros(2)});
  linear(input).sum().backward();
  EXPECT_TRUE(linear->weight.grad().allclose(input.sum(0).expand({2, 3})));
}

// Moving one of two tied parameters separates them.
TEST(ModuleTensorsTest, ParametersAreTiedAgain) {
  torch::nn::Sequential net(torch::nn::Linear(2, 2), torch::nn::Linear(2, 2));
  set_module_tensor_to_device(*net, "0.weight", at::kMeta);
  retie_parameters(*net, {{"0.weight", "1.weight"}});
  EXPECT_EQ(net->parameters()[0].data_ptr(), net->parameters()[2].data_ptr());
}

}  // namespace
}  // namespace accel
