// Simulated ranks that compute on one device (tests/support/fake_device) have the CPU's bits. They share the device's
// stream, and each runs backward on its own thread.
#include <c10/core/DeviceGuard.h>
#include <gmock/gmock.h>

#include "sim/backend/simulate.hpp"
#include "sim/backend/torch_tensors.hpp"
#include "sim/ranks/group_member_of.hpp"
#include "tests/reference/training_state/saved_training.hpp"
#include "tests/support/fake_device/device.hpp"

namespace accel::testing::shared_device {
namespace {

using saved_training::Training;

constexpr int kRanks = 4;

AcceleratorOptions sharded(const std::string& strategy) {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = strategy,
                                                        .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                        .transformer_cls_names_to_wrap = {"Block"}}};
}

std::string trained(const AcceleratorOptions& options, bool on_device) {
  sim::SimulationOptions simulation{.num_ranks = kRanks};
  if (on_device) {
    simulation.place = [](RankContext& rank) {
      rank.device = fake_device::device(0);
      return std::make_shared<c10::DeviceGuard>(rank.device);
    };
  }
  std::vector<std::string> states(kRanks);
  sim::simulate(simulation, [&](RankContext& rank) {
    Training training(options);
    training.train(4);
    EXPECT_EQ(training.net->head->weight.device().is_cpu(), !on_device);
    states[rank.rank] = training.state();
  });
  return states.front();
}

void expect_equal_bits(const AcceleratorOptions& options) {
  const bool is_equal = trained(options, /*on_device=*/true) == trained(options, /*on_device=*/false);
  EXPECT_TRUE(is_equal);
}

TEST(SharedDeviceTest, DdpHasTheBitsOfTheCpu) { expect_equal_bits(saved_training::ddp()); }
TEST(SharedDeviceTest, Fp16HasTheBitsOfTheCpu) {
  auto options = saved_training::ddp();
  options.mixed_precision = "fp16";
  expect_equal_bits(options);
}
TEST(SharedDeviceTest, FsdpHasTheBitsOfTheCpu) { expect_equal_bits(sharded("FULL_SHARD")); }
TEST(SharedDeviceTest, ZeroHasTheBitsOfTheCpu) {
  expect_equal_bits({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}});
}

TEST(SharedDeviceTest, FlippedBitsReachTheDevice) {
  auto tensor = torch::ones({2}, fake_device::device(0));
  const auto buffers = std::make_shared<sim::BuffersOf<at::Tensor>>();
  buffers->inputs = buffers->outputs = {tensor};
  sim::JoinedBuffers<at::Tensor>(buffers, Call{.op = Collective::kAllReduce}).corrupt({.bit = 31});
  EXPECT_TRUE(tensor.cpu().equal(torch::tensor({-1.0F, 1.0F})));
}

}  // namespace
}  // namespace accel::testing::shared_device
