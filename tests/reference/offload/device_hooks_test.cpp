// Hooks that move weights and inputs, on a device other than the CPU.
#include "reference/offload/device_hooks.hpp"

#include <gmock/gmock.h>
#include <torch/nn/modules/container/sequential.h>

#include "reference/core/errors.hpp"
#include "reference/offload/layerwise_casting.hpp"
#include "reference/state/rank_context.hpp"
#include "tests/support/fake_device/device.hpp"
#include "tests/support/fake_device/race_detector.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::device_hooks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const c10::Device kCpu(at::kCPU);

c10::Device device() { return fake_device::device(0); }
c10::Device device_of(const torch::nn::Linear& net) { return net->weight.device(); }

// The pipeline of cpu_offload_with_hook's documentation.
TEST(DeviceHooksTest, EachModelMovesWhenItIsCalledAndOffloadsThePreviousOne) {
  const torch::NoGradGuard no_grad;
  fake_device::races().clear();
  std::vector<torch::nn::Linear> nets;
  auto expected = torch::randn({2, 4});
  auto hidden = expected;
  for (int i = 0; i < 3; ++i) nets.emplace_back(4, 4);
  for (int step = 0; step < 3; ++step) expected = nets[step == 0 ? 0 : 1](expected);
  expected = nets[2](expected);

  auto [model_1, hook_1] = cpu_offload_with_hook(nets[0], {.execution_device = device()});
  auto [model_2, hook_2] = cpu_offload_with_hook(nets[1], {.execution_device = device(), .prev_module_hook = hook_1});
  auto [model_3, hook_3] = cpu_offload_with_hook(nets[2], {.execution_device = device(), .prev_module_hook = hook_2});
  hidden = model_1(hidden);
  EXPECT_EQ(hidden.device(), device());
  EXPECT_EQ(device_of(nets[0]), device());
  for (int step = 0; step < 2; ++step) {
    hidden = model_2(hidden);
    EXPECT_EQ(device_of(nets[0]), kCpu);
    EXPECT_EQ(device_of(nets[1]), device());
    EXPECT_EQ(device_of(nets[2]), kCpu);
  }
  hidden = model_3(hidden);
  EXPECT_EQ(device_of(nets[1]), kCpu);
  EXPECT_EQ(device_of(nets[2]), device());
  hook_3.offload();
  EXPECT_EQ(device_of(nets[2]), kCpu);
  EXPECT_TRUE(torch::equal(hidden.cpu(), expected));
  EXPECT_THAT(fake_device::races().races(), IsEmpty());
}

// Accelerate moves inputs only in the call that moves the model.
TEST(DeviceHooksTest, InputsAreMovedInEveryCall) {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear net(4, 4);
  auto [model, hook] = cpu_offload_with_hook(net, {.execution_device = device()});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(model(torch::ones({1, 4})).device(), device());
}

TEST(DeviceHooksTest, TheDeviceOfTheRankIsTheDefault) {
  const torch::NoGradGuard no_grad;
  const auto rank = make_single_rank();
  rank->device = device();
  const RankScope scope(*rank);
  torch::nn::Linear net(4, 4);
  EXPECT_EQ(cpu_offload_with_hook(net).first(torch::ones({1, 4})).device(), device());
}

TEST(DeviceHooksTest, ARemovedHookMovesNothing) {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear net(4, 4);
  auto [model, hook] = cpu_offload_with_hook(net, {.execution_device = device()});
  hook.remove();
  EXPECT_EQ(model(torch::ones({1, 4})).device(), kCpu);
  EXPECT_EQ(device_of(net), kCpu);
}

TEST(DeviceHooksTest, AHookThatHoldsWeightsServesOneModule) {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear net(4, 4), other(4, 4);
  const auto hook =
      std::make_shared<AlignDevicesHook>(AlignDevicesOptions{.execution_device = device(), .offload = true});
  add_hook_to_module(*net, hook);
  EXPECT_THAT(message_of<StateError>([&] { add_hook_to_module(*other, hook); }), HasSubstr("one hook per module"));
}

// Models that are run in a loop refer to each other.
TEST(DeviceHooksTest, APipelineThatEndsReleasesItsModels) {
  std::weak_ptr<torch::nn::Module> first;
  {
    torch::nn::Linear net(4, 4), next(4, 4);
    first = net.ptr();
    const auto hook = cpu_offload_with_hook(net, {.execution_device = device()}).second;
    cpu_offload_with_hook(next, {.execution_device = device(), .prev_module_hook = hook});
  }
  EXPECT_TRUE(first.expired());
}

TEST(DeviceHooksTest, AModelWhosePartsAreMovedAlreadyIsRefused) {
  torch::nn::Sequential net(torch::nn::Linear(4, 4));
  const auto model = attach_layerwise_casting_hooks(net, {.storage_dtype = at::kHalf, .compute_dtype = at::kFloat});
  EXPECT_THAT(message_of<StateError>([&] { cpu_offload_with_hook(net, {.execution_device = device()}); }),
              HasSubstr("moved by sharding or offloading already"));
}

std::shared_ptr<AlignDevicesHook> align(AlignDevicesOptions options) {
  return std::make_shared<AlignDevicesHook>(std::move(options));
}

TEST(DeviceHooksTest, AlignedWeightsAreOnTheDeviceOnlyDuringTheForward) {
  const torch::NoGradGuard no_grad;
  torch::nn::Linear net(4, 4);
  const auto x = torch::randn({2, 4});
  const auto expected = net(x), weight = net->weight.detach().clone();
  add_hook_to_module(*net, align({.execution_device = device(), .offload = true, .io_same_device = true}));
  EXPECT_TRUE(net->weight.is_meta());
  for (int i = 0; i < 2; ++i) {
    const auto output = call(net, x);
    EXPECT_EQ(output.device(), kCpu);
    EXPECT_TRUE(torch::equal(output, expected));
    EXPECT_TRUE(net->weight.is_meta());
  }
  remove_hook_from_module(*net);
  EXPECT_TRUE(torch::equal(net->weight, weight));
}

TEST(DeviceHooksTest, WithoutOffloadTheWeightsMoveOnce) {
  const torch::NoGradGuard no_grad;
  torch::nn::Sequential net(torch::nn::Linear(4, 4));
  const auto weight = net->parameters().front();
  add_hook_to_module(*net, align({.execution_device = device()}));
  EXPECT_EQ(weight.device(), kCpu);  // of a module inside
  add_hook_to_module(*net, align({.execution_device = device(), .place_submodules = true}));
  EXPECT_EQ(weight.device(), device());
  EXPECT_EQ(call(net, torch::ones({1, 4})).device(), device());
}

// A module and one inside it that share a weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : inner(register_module("inner", torch::nn::Linear(4, 4))), head(register_parameter("head", inner->weight)) {}
  at::Tensor forward(const at::Tensor& x) { return torch::linear(call(inner, x), head); }
  torch::nn::Linear inner;
  at::Tensor head;
};
TORCH_MODULE(Tied);

TEST(DeviceHooksTest, ASharedWeightStaysLoadedForTheOuterModule) {
  const torch::NoGradGuard no_grad;
  Tied net;
  const auto x = torch::randn({2, 4}), expected = net(x);
  const std::map<std::string, at::Tensor> weights{{"weight", net->head.detach()}, {"bias", net->inner->bias.detach()}};
  add_hook_to_module(*net, align({.execution_device = device(), .offload = true, .io_same_device = true}));
  add_hook_to_module(*net->inner, align({.execution_device = device(), .offload = true, .weights_map = weights}));
  EXPECT_TRUE(torch::equal(call(net, x), expected));
  EXPECT_TRUE(net->head.is_meta());
}

TEST(DeviceHooksTest, MissingWeightsAndGradientsAreReported) {
  torch::nn::Linear net(4, 4);
  EXPECT_THAT(
      message_of<ArgumentError>([&] {
        add_hook_to_module(
            *net, align({.execution_device = device(), .offload = true, .weights_map = {{"other", torch::ones({})}}}));
      }),
      HasSubstr("weights_map lacks 'weight', 'bias'"));
  EXPECT_EQ(device_of(net), kCpu);
  EXPECT_THAT(message_of<ArgumentError>([&] { align({.offload = true}); }), HasSubstr("requires execution_device"));
  add_hook_to_module(*net, align({.execution_device = device(), .offload = true}));
  EXPECT_THAT(message_of<StateError>([&] {
                call(net, torch::ones({1, 4}));
              }),
              AllOf(HasSubstr("'weight'"), HasSubstr("NoGradGuard")));
}

}  // namespace
}  // namespace accel::testing::device_hooks_test
