// Warnings: what is reported, how often, and as an error.
#include <dlfcn.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/accel.hpp>
#include <accel/checkpoint.hpp>
#include <accel/offload.hpp>
#include <accel/testing.hpp>
#include <mutex>
#include <set>

#include "reference/config/launch/launch_keys.hpp"
#include "reference/state/warnings.hpp"
#include "tests/support/clean_environment.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing::warnings_test {

// The names that the program has asked the environment for. Never destroyed: libraries ask until the process ends.
std::set<std::string>& names_read() {
  static auto* const names = new std::set<std::string>;
  return *names;
}

namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Warnings = std::vector<std::string>;

// The warnings of each of two ranks.
std::vector<Warnings> warnings_of(const std::function<void(RankContext&)>& body) {
  return collect_ranks(Backend::kGlooThreads, 2, [&](RankContext& rank) {
    Warnings warnings;
    rank.warn = [&](const std::string& text) { warnings.push_back(text); };
    body(rank);
    return warnings;
  });
}

class WarningsTest : public ::testing::Test {
 protected:
  /// The warnings of an Accelerator with these options, which only rank 0 has.
  Warnings of_options(const AcceleratorOptions& options) {
    const auto of_ranks = warnings_of([&](RankContext& rank) { Accelerator accelerator(options, rank); });
    EXPECT_THAT(of_ranks.at(1), IsEmpty());
    return of_ranks.front();
  }

  CleanEnvironment environment_{{"ACCEL_", "ACCELERATE_", "FSDP_"}};
  TemporaryFolder folder_;
};

TEST_F(WarningsTest, ARankReportsEachTextOnce) {
  EXPECT_THAT(warnings_of([](RankContext& rank) {
                for (const auto* text : {"a", "b", "a"}) warn_once(rank, text);
                warn_once("main");
                warn_once("main");
              }),
              ElementsAre(ElementsAre("a", "b", "main"), ElementsAre("a", "b")));
}

TEST_F(WarningsTest, TheyCanBeErrorsOrSilent) {
  const auto warn = [] { return warnings_of([](RankContext& rank) { warn_once(rank, "planted"); }).front(); };
  environment_.set({{"ACCEL_WARNINGS", "ignore"}});
  EXPECT_THAT(warn(), IsEmpty());
  environment_.set({{"ACCEL_WARNINGS", "default"}, {"ACCELERATE_LOG_LEVEL", "ERROR"}});
  EXPECT_THAT(warn(), IsEmpty());
  environment_.set({{"ACCEL_WARNINGS", "error"}});
  EXPECT_THAT(message_of<StateError>([] { warn_once("planted"); }),
              HasSubstr("planted (an error because ACCEL_WARNINGS is error)"));
  environment_.set({{"ACCEL_WARNINGS", "loud"}});
  EXPECT_THAT(message_of<ConfigError>([] { warn_once("planted"); }),
              HasSubstr("ACCEL_WARNINGS: expected default, error or ignore, got 'loud'"));
}

TEST_F(WarningsTest, IgnoredOptionsAreReported) {
  EXPECT_THAT(of_options({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 2, .zero3_init_flag = true}}),
              ElementsAre(HasSubstr("zero3_init_flag: applies to ZeRO stage 3 only")));
  EXPECT_THAT(of_options({.deepspeed_plugin = DeepSpeedPlugin{.zero_stage = 3, .zero3_init_flag = true}}),
              ElementsAre(HasSubstr("zero3_init_flag: it is ignored: a model is created whole")));
  EXPECT_THAT(of_options({.gradient_accumulation_steps = 4,
                          .deepspeed_plugin = DeepSpeedPlugin{.gradient_accumulation_steps = "2", .zero_stage = 1}}),
              ElementsAre("gradient_accumulation_steps: 4 is set, but the DeepSpeed plugin's 2 is used"));
  EXPECT_THAT(of_options({.fsdp_plugin = FullyShardedDataParallelPlugin{.sync_module_states = false,
                                                                        .cpu_ram_efficient_loading = true}}),
              ElementsAre(HasSubstr("sync_module_states: false is ignored")));
  EXPECT_THAT(
      of_options({.deepspeed_plugin =
                      DeepSpeedPlugin{.hf_ds_config = folder_.write(
                                          "ds.json", R"({"zero_optimization": {"stage": 1, "overlap_comm": true}})")}}),
      ElementsAre(HasSubstr("these keys have no effect in accel: zero_optimization.overlap_comm")));
  EXPECT_THAT(
      of_options({.gradient_accumulation_steps = 4,
                  .megatron_lm_plugin = MegatronLMPlugin{.num_micro_batches = 2, .sequence_parallelism = true}}),
      ElementsAre(HasSubstr("sequence_parallelism: it is ignored, because tp_degree is 1"),
                  "gradient_accumulation_steps: 4 is set, but the Megatron-LM plugin's 2 is used"));
  ParallelismConfig mesh;
  mesh.cp_handler.emplace();
  EXPECT_THAT(of_options({.parallelism_config = mesh}),
              ElementsAre("parallelism_config: cp_handler: it is ignored, because cp_size is 1"));
  EXPECT_THAT(of_options({}), IsEmpty());
}

TEST_F(WarningsTest, WeightsThatAreNotUsedOrNotSavedAreReported) {
  const auto of_main = warnings_of([&](RankContext& rank) {
    Accelerator accelerator({}, rank);
    torch::nn::Linear net(2, 2), smaller(torch::nn::LinearOptions(2, 2).bias(false));
    auto model = accelerator.prepare(net);
    accelerator.save_model(model, folder_.path("weights"));
    load_checkpoint_in_model(*smaller, folder_.path("weights/model.safetensors"));
  });
  EXPECT_THAT(of_main,
              ElementsAre(ElementsAre(HasSubstr("not in the model, and therefore not used: bias")), IsEmpty()));
  const auto weight = torch::ones({2});
  const auto of_checkpointing = warnings_of([&](RankContext& rank) {
    Checkpointing checkpointing(rank, {});
    checkpointing.save_model({{"a", weight}, {"b", weight}, {"c", torch::ones({1}, at::kMeta)}}, folder_.path("tied"),
                             {});
  });
  EXPECT_THAT(of_checkpointing,
              ElementsAre(ElementsAre("save_model: on the meta device, and therefore not saved: c",
                                      "save_model: shared tensors are saved under one name: 'b' as 'a'"),
                          IsEmpty()));
  EXPECT_EQ(read_weights(folder_.path("tied")).size(), 1);
}

struct Head : torch::nn::Module {
  explicit Head(const at::Tensor& shared) { register_parameter("weight", shared); }
};
struct TiedNet : torch::nn::Module {
  TiedNet() {
    const auto layer = register_module("layer", torch::nn::Linear(2, 2));
    register_module("head", std::make_shared<Head>(layer->weight));
  }
};

// A limit of 50 bytes for the GPU holds neither the layer nor the buffers of the batch norm, which stay there.
TEST_F(WarningsTest, PlacesThatDoNotFitAreReported) {
  const auto of_ranks = warnings_of([&](RankContext& rank) {
    const torch::nn::Sequential net(torch::nn::Linear(8, 8), torch::nn::BatchNorm1d(8));
    infer_auto_device_map(net, {.max_memory = MaxMemory{{0, 50}, {"cpu", 1'000'000}}});
    if (rank.rank == 0)
      dispatch_model(std::make_shared<TiedNet>(), {{"layer", "cpu"}, {"head", "disk"}},
                     {.offload_dir = folder_.path("offload")});
  });
  EXPECT_THAT(of_ranks,
              ElementsAre(ElementsAre(HasSubstr("infer_auto_device_map: the buffers of offloaded modules"),
                                      AllOf(HasSubstr("places one shared tensor twice"),
                                            HasSubstr("'layer.weight' on cpu"), HasSubstr("'head.weight' on disk"))),
                          IsEmpty()));
}

// --- variables -------------------------------------------------------------------------------------------------------

// Every variable of the table is read by an option that it configures: else its row needs a reason.
TEST_F(WarningsTest, EveryVariableOfASectionIsRead) {
  const auto read = [](const std::map<std::string, std::string>& variables, int num_ranks = 1) {
    CleanEnvironment environment{{"ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_"}};
    environment.set(variables);
    run_ranks(Backend::kGlooThreads, num_ranks, [](RankContext& rank) {
      rank.warn = [](const std::string&) {};
      Accelerator accelerator({}, rank);
    });
  };
  names_read().clear();
  read({{"ACCELERATE_USE_FSDP", "true"}});
  read({{"ACCELERATE_USE_FSDP", "true"}, {"FSDP_VERSION", "2"}});
  for (const auto* axis : {"CP", "SP"})
    read({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"}, {fmt::format("PARALLELISM_CONFIG_{}_SIZE", axis), "2"}}, 2);
  read({{"ACCELERATE_USE_MEGATRON_LM", "true"}});
  read({{"ACCELERATE_USE_DEEPSPEED", "true"}});
  read({{"ACCELERATE_MIXED_PRECISION", "fp8"}});
  const auto names = names_read();
  for (const auto& section : launch_sections()) {
    for (const auto& key : section.keys) {
      if (key.variable != nullptr && unused_reason(section, key) == nullptr)
        EXPECT_TRUE(names.contains(key.variable)) << section.name << ": " << key.name << ": " << key.variable;
    }
  }
}

TEST_F(WarningsTest, VariablesWithoutEffectAreReported) {
  environment_.set({{"ACCELERATE_DYNAMO_BACKEND", "INDUCTOR"}});
  EXPECT_THAT(of_options({}),
              ElementsAre("ACCELERATE_DYNAMO_BACKEND: has no effect: TorchDynamo compiles Python code"));
}

}  // namespace
}  // namespace accel::testing::warnings_test

// Takes the place of the C library's, for the whole test program.
extern "C" char* getenv(const char* name) noexcept {
  using Function = char* (*)(const char*);
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "getenv"));
  static thread_local bool is_noting = false;
  if (!is_noting) {
    is_noting = true;
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    accel::testing::warnings_test::names_read().insert(name);
    is_noting = false;
  }
  return original(name);
}
