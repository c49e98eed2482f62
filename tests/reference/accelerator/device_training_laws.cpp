// Any training on a device other than the CPU has the CPU's bits, and nothing that it does there is unordered. The
// device is that of tests/support/fake_device.
#include <gtest/gtest.h>

#include "tests/reference/training_state/saved_training.hpp"
#include "tests/support/fake_device/collectives.hpp"
#include "tests/support/fake_device/race_detector.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"

namespace accel::testing::device_training_laws {
namespace {

using saved_training::Training;

struct Case {
  int num_ranks = 1;
  std::string strategy = "ddp";  // ddp, zero_1 to zero_3, or a sharding strategy of FSDP
  std::string precision = "no";  // or "bf16 masters": bfloat16 weights
  double init_scale = 65536;     // with fp16; the larger ones skip the first steps
  std::string comm_hook = "no", prefetch = "NO_PREFETCH";
  bool offloads = false, prefetches_forward = false, bucket_views = false, recomputes = false, saves_pieces = false,
       saves_asynchronously = false;
  int accumulation_steps = 1, num_steps = 1;
  double clip_norm = 0;     // 0: no clipping
  bool is_resumed = false;  // saved and loaded after half of the steps
};

Case any_case() {
  Case c{.num_ranks = pick(1, 5),
         .strategy = pick_from<std::string>(
             {"ddp", "FULL_SHARD", "SHARD_GRAD_OP", "HYBRID_SHARD", "zero_1", "zero_2", "zero_3"}),
         .precision = pick_from<std::string>({"no", "bf16", "fp16", "bf16 masters"}),
         .init_scale = pick_from({65536.0, 1e9, 1e30}),
         .comm_hook = pick_from<std::string>({"no", "fp16", "bf16", "power_sgd"}),
         .prefetch = pick_from<std::string>({"NO_PREFETCH", "BACKWARD_PRE", "BACKWARD_POST"}),
         .offloads = one_in(3),
         .prefetches_forward = one_in(2),
         .bucket_views = one_in(2),
         .recomputes = one_in(3),
         .saves_pieces = one_in(2),
         .saves_asynchronously = one_in(2),
         .accumulation_steps = pick(1, 4),
         .num_steps = pick(1, 6),
         .clip_norm = pick_from({0.0, 0.01, 1.0}),
         .is_resumed = one_in(3)};
  if (c.strategy == "HYBRID_SHARD") c.num_ranks = 4;  // two machines of two ranks
  if (c.num_ranks == 1) c.comm_hook = "no";           // DDP runs in a group of one on CPUs only, as in Accelerate
  if (c.strategy != "ddp" && c.precision == "bf16 masters") c.precision = "bf16";
  return c;
}

std::string describe(const Case& c) {
  return fmt::format(
      "ranks {}, {}, precision {}, init_scale {}, comm_hook {}, prefetch {}, offloads {}, prefetches_forward {}, "
      "bucket_views {}, "
      "recomputes {}, saves_pieces {}, saves_asynchronously {}, accumulation_steps {}, steps {}, clip_norm {}, "
      "is_resumed {}",
      c.num_ranks, c.strategy, c.precision, c.init_scale, c.comm_hook, c.prefetch, c.offloads, c.prefetches_forward,
      c.bucket_views, c.recomputes, c.saves_pieces, c.saves_asynchronously, c.accumulation_steps, c.num_steps,
      c.clip_norm, c.is_resumed);
}

AcceleratorOptions options_of(const Case& c) {
  AcceleratorOptions options{.mixed_precision = c.precision.substr(0, 4),
                             .master_weights = c.precision == "bf16 masters",
                             .grad_scaler_kwargs = {.init_scale = c.init_scale, .backoff_factor = 1e-4}};
  // DeepSpeed's plugin has its own number of steps and its own clipping.
  if (c.strategy.starts_with("zero")) {
    options.deepspeed_plugin = DeepSpeedPlugin{.gradient_accumulation_steps = std::to_string(c.accumulation_steps),
                                               .zero_stage = c.strategy.back() - '0'};
    return options;
  }
  options.gradient_accumulation_steps = c.accumulation_steps;
  if (c.strategy == "ddp") {
    options.ddp_kwargs = {.find_unused_parameters = true,
                          .gradient_as_bucket_view = c.bucket_views,
                          .comm_hook = c.comm_hook,
                          .comm_state_option = {.start_powerSGD_iter = 2, .min_compression_rate = 0.5}};
    return options;
  }
  options.fsdp_plugin =
      FullyShardedDataParallelPlugin{.sharding_strategy = c.strategy,
                                     .backward_prefetch = c.prefetch,
                                     .auto_wrap_policy = "TRANSFORMER_BASED_WRAP",
                                     .transformer_cls_names_to_wrap = {"Block"},
                                     .cpu_offload = c.offloads,
                                     .state_dict_type = c.saves_pieces ? "SHARDED_STATE_DICT" : "FULL_STATE_DICT",
                                     .forward_prefetch = c.prefetches_forward,
                                     .activation_checkpointing = c.recomputes};
  return options;
}

void train(Training& training, const Case& c, int num_steps) {
  for (auto& [inputs] : training.batches) {
    auto window = training.accelerator.accumulate(training.model);
    training.accelerator.backward(training.model(inputs.expand({1, 4}) / 10).square().mean());
    if (c.clip_norm > 0 && training.accelerator.sync_gradients() && !c.strategy.starts_with("zero"))
      training.accelerator.clip_grad_norm_(training.net->parameters(), c.clip_norm);
    training.optimizer.step();
    training.scheduler.step();
    training.optimizer.zero_grad();
    if (--num_steps == 0) return;
  }
}

// The state of the first rank after the training, on devices or on the CPU.
std::string state_after(const Case& c, bool on_device) {
  const TemporaryFolder folder;
  return collect_ranks(Backend::kSim, c.num_ranks,
                       [&](RankContext& rank) {
                         if (c.strategy == "HYBRID_SHARD") {
                           rank.local_world_size = 2;
                           rank.local_rank = rank.rank % 2;
                         }
                         std::optional<fake_device::DeviceScope> scope;
                         if (on_device) scope.emplace(rank);
                         auto training = std::make_unique<Training>(options_of(c));
                         train(*training, c, c.num_steps);
                         if (c.is_resumed) {
                           training->accelerator.save_state(folder.path("state"), {.async = c.saves_asynchronously});
                           training->accelerator.finish_saving();
                           training = std::make_unique<Training>(options_of(c), /*seed=*/4);
                           training->accelerator.load_state(folder.path("state"));
                           train(*training, c, c.num_steps);
                         }
                         return training->state();
                       })
      .front();
}

TEST(DeviceTrainingLaws, AnyTrainingHasTheBitsOfTheCpuAndNoRace) {
  expect_property(100, [] {
    const auto c = any_case();
    RC_LOG(describe(c));
    const auto of_cpu = state_after(c, /*on_device=*/false);
    fake_device::races().clear();
    const auto of_device = state_after(c, /*on_device=*/true);
    const auto races = fake_device::races().races();
    if (!races.empty()) RC_LOG(races.front());
    RC_ASSERT(races.empty());
    RC_ASSERT((of_cpu == of_device));
  });
}

}  // namespace
}  // namespace accel::testing::device_training_laws
