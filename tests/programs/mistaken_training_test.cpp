// Mistakes that users make when they port a training loop, on simulated ranks and on Gloo processes. Either the
// result is right on every rank, or the program is rejected or warned. Silent divergence is the failure that these
// tests prevent.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::mistaken_training_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kRanks = 4;

class MistakenTrainingTest : public ::testing::TestWithParam<std::string> {
 protected:
  static CommandResult train(const std::string& mistake, const std::vector<std::string>& arguments = {}) {
    std::vector<std::string> command{
        bin("sim-run"),           "--backend", GetParam(), "--ranks", std::to_string(kRanks), "--",
        bin("mistaken_training"), mistake};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_command(command, {.limit = std::chrono::seconds(60)});
  }
  // Returns the digits of all ranks, which must be equal.
  static std::string digits(const CommandResult& run) {
    EXPECT_EQ(run.exit_code, 0) << run.error;
    std::istringstream in(run.output);
    std::multiset<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.insert(line);
    EXPECT_EQ(lines.size(), static_cast<std::size_t>(kRanks)) << run.output;
    EXPECT_EQ(std::set<std::string>(lines.begin(), lines.end()).size(), 1U) << run.output;
    return lines.empty() ? "" : *lines.begin();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, MistakenTrainingTest, ::testing::Values("sim", "gloo"),
                         [](const auto& info) { return info.param; });

// Both are natural in C++ and unusual in Python. Neither may train a copy.
TEST_P(MistakenTrainingTest, AModuleOnTheStackAndATemporaryOptimizerTrainOneModel) {
  const auto stack = train("module on the stack"), temporary = train("temporary optimizer");
  EXPECT_THAT(stack.error, IsEmpty());
  EXPECT_EQ(digits(stack), digits(temporary));
}

// Calling the module bypasses DDP, so every rank would train its own model.
TEST_P(MistakenTrainingTest, CallingForwardOfTheModuleIsRejected) {
  const auto run = train("forward of the module");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(
      run.error,
      AllOf(HasSubstr("the gradients of 'first.weight' and 3 more parameters were not averaged over the 4 ranks"),
            HasSubstr("Call model(x)")));
}

// C++ cannot list a struct's members, so the tensors in it would be left unconverted without notice.
TEST_P(MistakenTrainingTest, AStructWithoutTreeMembersIsRejectedWithTheLineToAdd) {
  for (const std::string wrapper : {"FSDP", "bf16"}) {
    const auto run = train("struct under " + wrapper);
    EXPECT_EQ(run.exit_code, 1);
    EXPECT_THAT(
        run.error,
        HasSubstr(
            "template <> inline constexpr auto accel::tree_members<(anonymous namespace)::Outputs> = std::tuple(&"))
        << wrapper;
  }
}

TEST_P(MistakenTrainingTest, AShardedCheckpointRestoresTheOptimizersState) {
  const TemporaryFolder folder;
  EXPECT_EQ(train("sharded checkpoint", {folder.path("state")}).exit_code, 0);
  const auto run = train("unsharded run", {folder.path("state")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, "states 4\n");
}

// A forgotten prepare() trains each rank on its own: losses fall, and nothing looks wrong.
TEST_P(MistakenTrainingTest, UnpreparedObjectsAreReported) {
  const auto optimizer = train("optimizer not prepared");
  EXPECT_THAT(optimizer.error, HasSubstr("is prepared, but no prepared optimizer has its parameters"));
  digits(optimizer);
  EXPECT_THAT(
      train("loader not prepared").error,
      AllOf(HasSubstr("mistaken_training.cpp:"), HasSubstr("of 16 samples (batch_size 4) that was not prepared")));
}

}  // namespace
}  // namespace accel::testing::mistaken_training_test
