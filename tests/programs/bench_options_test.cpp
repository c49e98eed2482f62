// Benchmarks run for minutes, so a mistake in their options must be reported before they start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/programs/support/bench_against.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing::bench_options_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// 20 seconds is far below the duration of any benchmark and far above that of a usage error.
const CommandOptions kShort{.limit = std::chrono::seconds(20)};

class BenchOptionsTest : public ::testing::TestWithParam<const char*> {
 protected:
  static CommandResult run(const std::vector<std::string>& arguments) {
    auto command = GetParam() == std::string("bench_against") ? bench_against() : std::vector{bin(GetParam())};
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_command(command, kShort);
  }
};
INSTANTIATE_TEST_SUITE_P(Programs, BenchOptionsTest,
                         ::testing::Values("step_bench", "collectives_bench", "loader_bench", "checkpoint_bench",
                                           "launch_bench", "elastic_bench", "bench_against", "first_step",
                                           "experiment_bench"),
                         [](const auto& info) { return info.param; });

// Benchmarks run for minutes, so a test that starts one by mistake fails at its time limit.
TEST_P(BenchOptionsTest, HelpIsTheUsageAndNothingRuns) {
  const auto help = run({"--help"});
  EXPECT_EQ(help.exit_code, 0) << help.error;
  EXPECT_THAT(help.output, HasSubstr(GetParam()));
}

// A mistyped option would measure something else than intended, without notice.
TEST_P(BenchOptionsTest, AnUnknownOptionIsAUsageError) {
  for (const auto& arguments : {std::vector<std::string>{"--no-such-option"}, {"--no-such-option", "3"}, {"stray"}}) {
    const auto run = this->run(arguments);
    EXPECT_EQ(run.exit_code, 2) << arguments.front();
    EXPECT_THAT(run.error, Not(IsEmpty()));
  }
}

TEST_P(BenchOptionsTest, AnOptionWithoutItsValueIsAUsageError) {
  for (const auto* option : {"--rounds", "--out", "--python", "--rows"})
    EXPECT_EQ(run({option}).exit_code, 2) << option;
}

class BenchNumbersTest : public BenchOptionsTest {};
INSTANTIATE_TEST_SUITE_P(Programs, BenchNumbersTest,
                         ::testing::Values("step_bench", "collectives_bench", "loader_bench", "checkpoint_bench",
                                           "launch_bench", "elastic_bench", "bench_against"),
                         [](const auto& info) { return info.param; });

// Otherwise the numbers of a long measurement would be lost at its end.
TEST_P(BenchNumbersTest, AFileThatCannotBeWrittenIsReportedBeforeAnythingRuns) {
  const auto run = this->run({"--out", "/no-such-folder/numbers.json"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("--out: /no-such-folder is not a folder"));
}

}  // namespace
}  // namespace accel::testing::bench_options_test
