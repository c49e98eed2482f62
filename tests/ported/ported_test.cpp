// Tests of programs ported from plain LibTorch. On one process a port must print the same digits as its plain loop,
// and on four Gloo processes the same as on four simulated ranks. The digits are compared as text, to the last one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::ported_test {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

// The output of a command that must succeed.
std::string run(const std::vector<std::string>& command) {
  const auto result = run_command(command, {.limit = std::chrono::seconds(100)});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.error;
  EXPECT_THAT(result.output, Not(IsEmpty()));
  EXPECT_THAT(result.error, IsEmpty());
  return result.output;
}

// The output of the program on ranks of this backend.
std::string run_on(const std::string& backend, int ranks, const std::vector<std::string>& arguments) {
  std::vector<std::string> command{bin("sim-run"),        "--backend", backend,      "--ranks",
                                   std::to_string(ranks), "--",        bin("ported")};
  command.insert(command.end(), arguments.begin(), arguments.end());
  return run(command);
}

class PortedTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Programs, PortedTest,
                         ::testing::Values("stack_module", "gan", "struct_output", "transformer", "lstm",
                                           "stop_on_loss"),
                         [](const auto& info) { return info.param; });

// Also on the simulator with one rank.
TEST_P(PortedTest, OneProcessPrintsTheDigitsOfThePlainLoop) {
  const auto plain = run({bin("ported"), GetParam(), "--plain"});
  EXPECT_EQ(run({bin("ported"), GetParam()}), plain);
  EXPECT_EQ(run_on("sim", 1, {GetParam()}), plain);
}

// If four ranks printed the same as one, the data would not have been divided.
TEST_P(PortedTest, FourProcessesPrintTheDigitsOfFourSimulatedRanks) {
  const auto real = run_on("gloo", 4, {GetParam()});
  EXPECT_EQ(run_on("sim", 4, {GetParam()}), real);
  EXPECT_NE(run({bin("ported"), GetParam()}), real) << "four ranks see other batches than one";
}

// Each of the three epochs runs in another process, in turn on simulated ranks and on Gloo.
TEST(PortedGanTest, AnotherBackendContinuesFromTheCheckpoint) {
  TemporaryFolder uncut, cut;
  const auto all = run_on("gloo", 4, {"gan", uncut.path()});
  auto parts = run_on("sim", 4, {"gan", cut.path(), "1"});
  parts += run_on("gloo", 4, {"gan", cut.path(), "2"});
  parts += run_on("sim", 4, {"gan", cut.path(), "3"});
  EXPECT_EQ(parts, all);
}

}  // namespace
}  // namespace accel::testing::ported_test
