// All training paths on a device other than the CPU (tests/support/fake_device) have the CPU's bits, and nothing that
// they do on the device is unordered.
#include <gmock/gmock.h>

#include "reference/accelerator/accelerator.hpp"
#include "tests/reference/training_state/saved_training.hpp"
#include "tests/support/fake_device/collectives.hpp"
#include "tests/support/fake_device/race_detector.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::device_training {
namespace {

using saved_training::Training;
using ::testing::IsEmpty;

struct Path {
  const char* name;
  std::function<AcceleratorOptions()> options;
};

AcceleratorOptions sharded(const std::string& strategy, bool offloads = false) {
  return {.fsdp_plugin = FullyShardedDataParallelPlugin{.sharding_strategy = strategy,
                                                        .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                                        .transformer_cls_names_to_wrap = {"Block"},
                                                        .cpu_offload = offloads}};
}

AcceleratorOptions accumulating() {
  auto options = saved_training::ddp();
  options.gradient_accumulation_steps = 3;
  return options;
}

const std::vector<Path> kPaths{
    {"ddp", [] { return saved_training::ddp(); }},
    {"accumulation", [] { return accumulating(); }},
    {"full_shard", [] { return sharded("FULL_SHARD"); }},
    {"shard_grad_op", [] { return sharded("SHARD_GRAD_OP"); }},
    {"offload", [] { return sharded("FULL_SHARD", /*offloads=*/true); }},
    {"zero_1", [] { return AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 1}}; }},
    {"zero_2", [] { return AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2}}; }},
    {"zero_3", [] { return AcceleratorOptions{.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3}}; }},
};

class DeviceTrainingTest : public ::testing::TestWithParam<Path> {
 protected:
  DeviceTrainingTest() { fake_device::races().clear(); }

  /// The state of every rank after a training on its own device, or on the CPU.
  static std::vector<std::string> train(const AcceleratorOptions& options, int num_ranks, bool on_device) {
    return collect_ranks(Backend::kSim, num_ranks, [&](RankContext& rank) {
      std::optional<fake_device::DeviceScope> scope;
      if (on_device) scope.emplace(rank);
      Training training(options);
      training.train(5);
      return training.state();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(All, DeviceTrainingTest, ::testing::ValuesIn(kPaths),
                         [](const auto& path) { return std::string(path.param.name); });

TEST_P(DeviceTrainingTest, HasTheBitsOfTheCpuAndNoRace) {
  for (const int num_ranks : {1, 2, 3}) {
    const auto of_cpu = train(GetParam().options(), num_ranks, /*on_device=*/false),
               of_device = train(GetParam().options(), num_ranks, /*on_device=*/true);
    EXPECT_EQ(of_cpu.front(), of_device.front()) << num_ranks << " ranks";
    EXPECT_THAT(fake_device::races().races(), IsEmpty());
  }
}

}  // namespace
}  // namespace accel::testing::device_training
