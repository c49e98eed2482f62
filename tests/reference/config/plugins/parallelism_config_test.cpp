// The options of a mesh's axes. Names, variables and defaults are those of accelerate/parallelism_config.py and of the
// handlers in accelerate/utils/dataclasses.py.
#include "reference/config/plugins/mesh_options.hpp"

#include <gmock/gmock.h>

#include "tests/support/clean_environment.hpp"

namespace accel::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Texts = std::vector<std::string>;

class ParallelismConfigTest : public ::testing::Test {
 protected:
  ParallelismConfig valid(const ParallelismConfig& config) {
    Texts problems;
    warnings_.clear();
    auto complete = resolved(config, problems, warnings_);
    EXPECT_THAT(problems, IsEmpty());
    return complete;
  }
  static Texts problems(const ParallelismConfig& config) {
    Texts problems, warnings;
    resolved(config, problems, warnings);
    return problems;
  }

  CleanEnvironment environment_{{"ACCELERATE_", "PARALLELISM_CONFIG_"}};
  Texts warnings_;
};

TEST_F(ParallelismConfigTest, AxesInUseGetHandlersWithDefaults) {
  EXPECT_EQ(valid({}), ParallelismConfig{});
  const auto config = valid({.cp_size = 2, .tp_size = 2});
  EXPECT_EQ(config.tp_handler, TorchTensorParallelConfig{});
  EXPECT_EQ(config.cp_handler->cp_comm_strategy, "allgather");
  EXPECT_FALSE(config.sp_handler.has_value());
  const auto sp = *valid({.sp_size = 2}).sp_handler;
  EXPECT_EQ(sp.sp_seq_length, std::nullopt);
  EXPECT_EQ(sp.sp_seq_length_is_variable, true);
  EXPECT_EQ(sp.sp_attn_implementation, "sdpa");
  EXPECT_THAT(warnings_, IsEmpty());
}

// A value that is already complete stays so: the Accelerator may be created from the options of another one.
TEST_F(ParallelismConfigTest, ACompleteConfigurationIsUnchanged) {
  const auto config = valid({.sp_size = 2, .tp_size = 2});
  EXPECT_EQ(valid(config), config);
}

TEST_F(ParallelismConfigTest, TheEnvironmentFillsInWhatHandlersLeaveOut) {
  environment_.set({{"PARALLELISM_CONFIG_CP_COMM_STRATEGY", "alltoall"},
                    {"PARALLELISM_CONFIG_SP_SEQ_LENGTH", "64"},
                    {"PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "False"}});
  EXPECT_EQ(valid({.cp_size = 2}).cp_handler->cp_comm_strategy, "alltoall");
  const TorchContextParallelConfig gathered{.cp_comm_strategy = "allgather"};
  EXPECT_EQ(valid({.cp_size = 2, .cp_handler = gathered}).cp_handler, gathered);
  const auto sp = *valid({.sp_size = 2}).sp_handler;
  EXPECT_EQ(sp.sp_seq_length, 64);
  EXPECT_EQ(sp.sp_seq_length_is_variable, false);
}

// Accelerate's launcher writes "None" where no length is given.
TEST_F(ParallelismConfigTest, NoneIsNoLength) {
  environment_.set({{"PARALLELISM_CONFIG_SP_SEQ_LENGTH", "None"}});
  EXPECT_EQ(valid({.sp_size = 2}).sp_handler->sp_seq_length, std::nullopt);
  environment_.set({{"PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE", "false"}});
  EXPECT_THAT(problems({.sp_size = 2}), ElementsAre(HasSubstr("sp_seq_length: missing")));
}

TEST_F(ParallelismConfigTest, WhatIsIgnoredIsAWarning) {
  ParallelismConfig config{.tp_handler = TorchTensorParallelConfig{}, .cp_handler = TorchContextParallelConfig{}};
  config.sp_handler.emplace();
  EXPECT_EQ(valid(config), ParallelismConfig{});
  EXPECT_THAT(warnings_, ElementsAre("parallelism_config: tp_handler: it is ignored, because tp_size is 1",
                                     "parallelism_config: cp_handler: it is ignored, because cp_size is 1",
                                     "parallelism_config: sp_handler: it is ignored, because sp_size is 1"));
  valid({.tp_size = 2, .tp_handler = TorchTensorParallelConfig{.enable_async_tp = true}});
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("enable_async_tp: it is not supported, and ignored")));
}

TEST_F(ParallelismConfigTest, AllProblemsAreInOneList) {
  ParallelismConfig config{.cp_size = 2, .sp_size = 3, .cp_backend = "nccl", .sp_backend = "megatron"};
  config.cp_handler = TorchContextParallelConfig{.cp_comm_strategy = "ring"};
  config.sp_handler = DeepSpeedSequenceParallelConfig{.sp_seq_length = 16, .sp_attn_implementation = "eager"};
  EXPECT_THAT(problems(config),
              ElementsAre("parallelism_config: cp_backend: expected 'torch', got 'nccl'",
                          "parallelism_config: sp_backend: expected 'deepspeed', got 'megatron'",
                          "parallelism_config: cp_handler: cp_comm_strategy: expected allgather, alltoall, got 'ring'",
                          "parallelism_config: sp_handler: sp_attn_implementation: expected sdpa, got 'eager'",
                          "parallelism_config: sp_handler: sp_seq_length: 16 is not divisible by sp_size 3; expected a "
                          "multiple of it"));
}

// The launcher's backends have one value each.
TEST_F(ParallelismConfigTest, BackendsOfTheEnvironmentAreChecked) {
  environment_.set({{"ACCELERATE_USE_PARALLELISM_CONFIG", "true"},
                    {"PARALLELISM_CONFIG_CP_BACKEND", "torch"},
                    {"PARALLELISM_CONFIG_SP_BACKEND", "megatron"},
                    {"PARALLELISM_CONFIG_EP_SIZE", "2"}});
  Texts problems;
  EXPECT_EQ(parallelism_config_of_environment(problems)->ep_size, 2);
  EXPECT_THAT(problems, ElementsAre("PARALLELISM_CONFIG_SP_BACKEND: expected deepspeed, got 'megatron'"));
}

}  // namespace
}  // namespace accel::testing
