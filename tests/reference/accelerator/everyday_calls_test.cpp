// Small calls of Accelerate's interface that belong to no larger subject.
#include <accel/accel.hpp>
#include <accel/checkpoint.hpp>
#include <accel/testing.hpp>

#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::everyday_calls {
namespace {

using ::testing::HasSubstr;

class EverydayCallsTest : public ::testing::TestWithParam<Backend> {};
INSTANTIATE_TEST_SUITE_P(Backends, EverydayCallsTest, ::testing::Values(Backend::kSim, Backend::kGlooThreads),
                         [](const auto& info) { return info.param == Backend::kSim ? "Simulated" : "Gloo"; });

TEST_P(EverydayCallsTest, ATensorOfOneRankReachesAll) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    const Accelerator accelerator({}, rank);
    const auto own = torch::arange(6, torch::kInt).view({3, 2}).t();  // not contiguous
    const auto copy = accelerator.copy_tensor_to_devices(rank.rank == 1 ? std::optional(own) : std::nullopt);
    EXPECT_TRUE(torch::equal(copy, own));
    EXPECT_EQ(copy.scalar_type(), torch::kInt);
    const auto none = [&] { static_cast<void>(accelerator.copy_tensor_to_devices(std::nullopt)); };
    EXPECT_THAT(message_of<ArgumentError>(none), HasSubstr("expected a tensor from one rank, got one from none"));
    const auto several = [&] {
      static_cast<void>(accelerator.copy_tensor_to_devices(rank.rank > 0 ? std::optional(own) : std::nullopt));
    };
    EXPECT_THAT(message_of<ArgumentError>(several), HasSubstr("got one from ranks 1, 2"));
  });
}

TEST(EverydayCalls, AStructureHasShapesAndDtypesOnly) {
  const std::map<std::string, std::vector<at::Tensor>> batch{{"x", {torch::ones({2, 3}), torch::ones({4}, at::kLong)}}};
  const auto structure = get_data_structure(batch);
  EXPECT_TRUE(structure.at("x")[0].is_meta());
  const auto made = initialize_tensors(structure);
  EXPECT_EQ(made.at("x")[0].sizes(), (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(made.at("x")[1].scalar_type(), at::kLong);
  EXPECT_TRUE(made.at("x")[1].is_cpu());
}

TEST(EverydayCalls, OptionsOfLoadersAndOfTheProjectCanBeRead) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    const Accelerator standard({}, rank);
    EXPECT_EQ(standard.dispatch_batches(), std::nullopt);
    EXPECT_FALSE(standard.non_blocking() || standard.use_seedable_sampler() || standard.use_stateful_dataloader());
    EXPECT_TRUE(Accelerator({.dataloader_config = {.dispatch_batches = true}}, rank).dispatch_batches().value());
    EXPECT_TRUE(Accelerator({.dataloader_config = {.use_seedable_sampler = true}}, rank).use_seedable_sampler());
    EXPECT_TRUE(Accelerator({.dataloader_config = {.non_blocking = true}}, rank).non_blocking());
    EXPECT_TRUE(Accelerator({.dataloader_config = {.use_stateful_dataloader = true}}, rank).use_stateful_dataloader());
    const Accelerator named({.project_config = {.project_dir = "runs", .total_limit = 3}}, rank);
    EXPECT_EQ(named.project_configuration().total_limit, 3);
    EXPECT_EQ(named.project_configuration().project_dir, "runs");
  });
}

TEST(EverydayCalls, ARankHasAnIndexAlongEachAxisOfTheMesh) {
  run_ranks(Backend::kSim, 8, [](RankContext& rank) {
    const ParallelismConfig mesh{.dp_shard_size = 2, .cp_size = 2, .tp_size = 2};
    const Accelerator accelerator({.parallelism_config = mesh}, rank);
    EXPECT_EQ(accelerator.data_parallel_shard_rank(), rank.rank / 4);
    EXPECT_EQ(accelerator.context_parallel_rank(), rank.rank / 2 % 2);
    EXPECT_EQ(accelerator.sequence_parallel_rank(), 0);
    EXPECT_EQ(accelerator.tensor_parallel_rank(), rank.rank % 2);
  });
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const Accelerator replicas({.parallelism_config = ParallelismConfig{.dp_replicate_size = 2}}, rank);
    EXPECT_EQ(replicas.tensor_parallel_rank(), 0);
    const Accelerator one_each({.parallelism_config = ParallelismConfig{}}, rank);
    EXPECT_EQ(one_each.tensor_parallel_rank(), 0);
    const Accelerator without({}, rank);
    const auto problem = message_of<StateError>([&] { static_cast<void>(without.data_parallel_shard_rank()); });
    EXPECT_THAT(problem, HasSubstr("data_parallel_shard_rank: there is no mesh; set parallelism_config"));
  });
}

TEST(EverydayCalls, OnlyTheMainProcessSaves) {
  const TemporaryFolder folder;
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const Accelerator accelerator({}, rank);
    accelerator.save(Value(Value::Dict{{"rank", rank.rank}}), folder.path("object.bin"));
    accelerator.save(NamedTensors{{"w", torch::full({2}, rank.rank + 1.0)}}, folder.path("w.safetensors"),
                     /*safe_serialization=*/true);
    accelerator.wait_for_everyone();
    EXPECT_EQ(read_torch_file(folder.path("object.bin")).at("rank").as<std::int64_t>(), 0);
    EXPECT_TRUE(torch::equal(SafetensorsFile(folder.path("w.safetensors")).tensor("w"), torch::ones({2})));
    EXPECT_TRUE(accelerator.should_save_model() == (rank.rank == 0));
    EXPECT_FALSE(accelerator.multi_device());
    EXPECT_EQ(accelerator.fp8_backend(), "NO");
    EXPECT_EQ(Accelerator({.mixed_precision = "fp8"}, rank).fp8_backend(), "AO");
  });
}

TEST(EverydayCalls, HandlersSetTheFieldsOfTheirTypes) {
  run_ranks(Backend::kSim, 1, [](RankContext& rank) {
    const Accelerator accelerator(
        {.mixed_precision = "fp16", .kwargs_handlers = {GradScalerKwargs{.init_scale = 64.0}}}, rank);
    EXPECT_EQ(accelerator.scaler()->get_scale(), 64.0);
  });
}

TEST(EverydayCalls, AHandlerThatIsSetTwiceIsAnErrorWithAllProblems) {
  const auto message = message_of<ConfigError>([] {
    auto rank = make_single_rank();
    Accelerator({.ddp_kwargs = {.static_graph = true},
                 .kwargs_handlers = {DistributedDataParallelKwargs{}, AutocastKwargs{.enabled = false},
                                     AutocastKwargs{.cache_enabled = false}, ProfileKwargs{.record_shapes = true},
                                     ProfileKwargs{}, GradScalerKwargs{}, GradScalerKwargs{}}},
                *rank);
  });
  for (const auto* name : {"ddp_kwargs", "autocast_kwargs", "profile_kwargs", "grad_scaler_kwargs"})
    EXPECT_THAT(message, HasSubstr(std::string("kwargs_handlers: ") + name + " is also set"));
}

TEST(EverydayCalls, OptionsAreAssignedInAnyOrder) {
  auto rank = make_single_rank();
  AcceleratorOptions options;
  options.project_dir = "runs";
  options.mixed_precision = "bf16";
  options.dataloader_config.even_batches = false;
  const Accelerator accelerator(options, *rank);
  EXPECT_EQ(accelerator.project_dir(), "runs");
  EXPECT_EQ(accelerator.mixed_precision(), "bf16");
  EXPECT_FALSE(accelerator.even_batches());
  EXPECT_EQ(accelerator.logging_dir(), "runs");
}

TEST(EverydayCalls, CpuReplacesTheDeviceExceptUnderNccl) {
  auto rank = make_single_rank();
  rank->device = c10::Device(c10::kCUDA, 0);
  EXPECT_TRUE(Accelerator({.cpu = true}, *rank).device().is_cpu());
  EXPECT_TRUE(rank->device.is_cpu());
  rank->device = c10::Device(c10::kCUDA, 0);
  rank->backend = "nccl";
  EXPECT_THAT(message_of<ConfigError>([&] { Accelerator({.cpu = true}, *rank); }), HasSubstr("over nccl"));
}

TEST(EverydayCalls, PlacementPerObjectExcludesSharding) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.fsdp_plugin = FullyShardedDataParallelPlugin{}}, rank);
    torch::nn::Linear model(2, 2);
    EXPECT_THAT(message_of<ArgumentError>([&] { accelerator.prepare({.device_placement = {false}}, model); }),
                HasSubstr("excludes fsdp_plugin"));
  });
}

TEST(EverydayCalls, AnUnwrappedModelMayKeepItsMixedPrecision) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Accelerator accelerator({.mixed_precision = "bf16"}, rank);
    torch::nn::Linear net(3, 2);
    auto model = accelerator.prepare(net);
    auto kept = accelerator.unwrap_model(model, {.keep_fp32_wrapper = true});
    const auto input = torch::full({1, 3}, 0.1);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(kept(input).scalar_type(), at::kFloat);
      EXPECT_TRUE(torch::equal(kept(input), model(input)));
      EXPECT_FALSE(torch::equal(kept(input), accelerator.unwrap_model(model)->forward(input)));
    }
    EXPECT_THROW(accelerator.unwrap_model(model, {.keep_fp32_wrapper = false}), ArgumentError);
    if (rank.rank == 0) kept(input).sum().backward();  // alone: it does not communicate
    accelerator.wait_for_everyone();
  });
}

TEST_P(EverydayCallsTest, PartialStateControlsProcessesWithoutAnAccelerator) {
  run_ranks(GetParam(), 3, [](RankContext& rank) {
    const PartialState state(rank);
    EXPECT_EQ(state.num_processes(), 3);
    EXPECT_EQ(state.process_index(), rank.rank);
    EXPECT_EQ(state.is_last_process(), rank.rank == 2);
    EXPECT_EQ(state.distributed_type(), DistributedType::kMultiCpu);
    const std::vector<int> items{1, 2, 3, 4};
    EXPECT_EQ(state.split_between_processes(items).size(), rank.rank == 0 ? 2U : 1U);
    int calls = 0;
    state.on_main_process([&] { ++calls; });
    state.on_process(1, [&] { ++calls; });
    EXPECT_EQ(calls, rank.rank < 2 ? 1 : 0);
    state.wait_for_everyone();
  });
}

TEST(EverydayCalls, AcceleratorStateIsThatOfTheLastAccelerator) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    EXPECT_THAT(message_of<StateError>([] { AcceleratorState(); }), HasSubstr("has no Accelerator"));
    {
      Accelerator accelerator({.mixed_precision = "bf16", .fsdp_plugin = FullyShardedDataParallelPlugin{}}, rank);
      const AcceleratorState state;
      EXPECT_EQ(state.mixed_precision(), "bf16");
      EXPECT_EQ(state.distributed_type(), DistributedType::kFsdp);
      accelerator.set_even_batches(false);
      EXPECT_FALSE(state.even_batches());
      static_cast<void>(Accelerator({.mixed_precision = "no"}, rank));  // one that has ended does not hide it
      EXPECT_EQ(AcceleratorState().mixed_precision(), "bf16");
    }
    EXPECT_THROW(AcceleratorState(), StateError);
  });
}

}  // namespace
}  // namespace accel::testing::everyday_calls
