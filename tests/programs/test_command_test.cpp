// `accel test`, the self-test of an installation. It must pass in every supported setup and fail if a network
// corrupts data.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backends/launch/ports.hpp"
#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::test_command_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TestCommandTest : public LaunchFixture {};

TEST_F(TestCommandTest, TheSelfTestIsASuccessInEveryWay) {
  for (const Words& flags : {Words{}, Words{"--cpu", "--num_processes", "3", "--main_process_port", "0"},
                             Words{"--sim", "--num_processes", "8"}}) {
    const auto run =
        run_command(Words{bin("accel"), "test"} + flags, {.environment = clean(), .limit = std::chrono::seconds(30)});
    EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
    EXPECT_EQ(last_line(run.output), "Test is a success! You are ready for your distributed training!");
    EXPECT_THAT(run.output, AllOf(HasSubstr("loaders in all modes: ok\n"), HasSubstr("11 of 11 checks passed on ")));
  }
}

// Parameters of a sharded model are compared unsharded, DeepSpeed clips, and the environment may set accumulation.
TEST_F(TestCommandTest, TheSelfTestSupportsEveryPlugin) {
  for (const Words& flags :
       {Words{"--use_fsdp"}, Words{"--use_fsdp", "--fsdp_version", "2"}, Words{"--use_deepspeed", "--zero_stage", "3"},
        Words{"--use_deepspeed", "--gradient_accumulation_steps", "2"}, Words{"--use_megatron_lm"},
        Words{"--use_megatron_lm", "--megatron_lm_num_micro_batches", "3", "--megatron_lm_gradient_clipping", "0.5"}}) {
    const auto run = run_command(Words{bin("accel"), "test", "--sim", "--num_processes", "4"} + flags,
                                 {.environment = clean(), .limit = std::chrono::seconds(60)});
    EXPECT_EQ(run.exit_code, 0) << flags[0] << run.output << run.error;
    EXPECT_THAT(run.output, HasSubstr("11 of 11 checks passed on "));
  }
}

// Ranks that divide layers need a model that is made for them.
TEST_F(TestCommandTest, TheSelfTestSaysWhatItLeavesOutUnderTensorParallelism) {
  const auto run = run_command(
      {bin("accel"), "test", "--sim", "--num_processes", "4", "--use_megatron_lm", "--megatron_lm_tp_degree", "2"},
      {.environment = clean(), .limit = std::chrono::seconds(60)});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, AllOf(HasSubstr("5 checks of training left out"), HasSubstr("6 of 6 checks passed on ")));
}

TEST_F(TestCommandTest, TheSelfTestRunsAsARankUnderMpirun) {
  const auto run = run_command({"mpirun", "-np", "2", "--oversubscribe", bin("accel"), "test", "--inner"},
                               {.environment = clean({{"MASTER_PORT", std::to_string(launcher::free_port())}}),
                                .limit = std::chrono::seconds(30)});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, HasSubstr("11 of 11 checks passed on 2 ranks, backend gloo"));
}

// A network that flips a bit of the data that a rank receives. The self-test must not pass.
TEST_F(TestCommandTest, TheSelfTestNoticesABitThatFlips) {
  const auto faults =
      folder_.write("faults.yaml", "seed: 3\nfaults:\n  - {kind: bit_flip, rank: 1, when: {collective: 2}}\n");
  const auto run =
      run_command({bin("sim-run"), "--ranks", "4", "--faults", faults, "--", bin("accel"), "test", "--inner"},
                  {.environment = clean(), .limit = kLimit});
  EXPECT_NE(run.exit_code, 0) << run.output;
  EXPECT_THAT(run.output + run.error, HasSubstr("rank 1"));
}

}  // namespace
}  // namespace accel::testing::test_command_test
