// Programs ported from plain LibTorch: on one process the plain loop's digits, and the same digits on four Gloo
// processes and four simulated ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::ported_test {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

std::string run(const std::vector<std::string>& command) {
  const auto result = run_command(command, {.limit = std::chrono::seconds(100)});
  EXPECT_EQ(result.exit_code, 0) << result.output << result.error;
  EXPECT_THAT(result.output, Not(IsEmpty()));
  EXPECT_THAT(result.error, IsEmpty());
  return result.output;
}

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

TEST_P(PortedTest, OneProcessPrintsTheDigitsOfThePlainLoop) {
  const auto plain = run({bin("ported"), GetParam(), "--plain"});
  EXPECT_EQ(run({bin("ported"), GetParam()}), plain);
  EXPECT_EQ(run_on("sim", 1, {GetParam()}), plain);
}

TEST_P(PortedTest, FourProcessesPrintTheDigitsOfFourSimulatedRanks) {
  const auto real = run_on("gloo", 4, {GetParam()});
  EXPECT_EQ(run_on("sim", 4, {GetParam()}), real);
  EXPECT_NE(run({bin("ported"), GetParam()}), real) << "four ranks see other batches than one";
}

TEST(PortedGanTest, AnotherBackendGoesOnFromTheCheckpoint) {
  TemporaryFolder uncut, cut;
  const auto all = run_on("gloo", 4, {"gan", uncut.path()});
  auto parts = run_on("sim", 4, {"gan", cut.path(), "1"});
  parts += run_on("gloo", 4, {"gan", cut.path(), "2"});
  parts += run_on("sim", 4, {"gan", cut.path(), "3"});
  EXPECT_EQ(parts, all);
}

}  // namespace
}  // namespace accel::testing::ported_test
