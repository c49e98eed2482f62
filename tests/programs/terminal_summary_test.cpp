// What a run of an experiment ends with on a terminal: a few readable lines, or with --json the line for programs,
// which summary_test.cpp checks. Standard output of these runs is a pseudo-terminal.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/programs/support/run_command.hpp"
#include "tests/programs/support/terminal_session.hpp"

namespace accel::testing::terminal_summary_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

std::vector<std::string> command_of(std::vector<std::string> options) {
  options.insert(options.begin(), {bin("sim-run"), "--quiet"});
  options.push_back(source("tests/programs/experiments/mlp_sgd_seedable.yaml"));
  return options;
}

std::string shown_on_terminal(const std::vector<std::string>& options) {
  TerminalSession session(command_of(options));
  EXPECT_EQ(session.finish(), 0) << session.shown();
  return session.shown();
}

TEST(TerminalSummaryTest, RunEndsWithReadableLines) {
  const TemporaryFolder folder;
  const auto report = folder.path("report");
  const auto shown = shown_on_terminal({"--ranks", "2", "--max-steps", "5", "--report", report});
  EXPECT_THAT(shown, AllOf(HasSubstr("mlp_sgd_seedable: 2 simulated ranks, 5 steps in "), HasSubstr("samples/s"),
                           HasSubstr("loss"), HasSubstr("% of 101 samples"), HasSubstr("MB per rank"),
                           HasSubstr(report + "/index.html"), Not(HasSubstr("{\""))));
}

TEST(TerminalSummaryTest, RealRanksAreCalledProcesses) {
  const auto shown = shown_on_terminal({"--backend", "gloo", "--ranks", "2", "--max-steps", "2"});
  EXPECT_THAT(shown,
              AllOf(HasSubstr("2 processes over gloo, 2 steps in "), Not(HasSubstr("report")), Not(HasSubstr("{\""))));
}

TEST(TerminalSummaryTest, LossThatIsNotFiniteIsNamed) {
  EXPECT_THAT(shown_on_terminal({"--set", "optimizer.lr=1e38", "--ranks", "2", "--max-steps", "6"}),
              HasSubstr("not finite"));
}

TEST(TerminalSummaryTest, ShardedRunShowsWhatARankHolds) {
  EXPECT_THAT(
      shown_on_terminal({"--set", "accelerator.fsdp_plugin.fsdp_version=2", "--ranks", "2", "--max-steps", "2"}),
      HasSubstr("at most per rank: parameters "));
}

// With --quiet the line is all that is shown. A terminal ends it by "\r\n", which JSON ignores.
TEST(TerminalSummaryTest, JsonOptionPrintsTheLineForPrograms) {
  const auto shown = shown_on_terminal({"--json", "--ranks", "2", "--max-steps", "2"});
  EXPECT_EQ(Json::parse(shown)["steps"], 2) << shown;
}

TEST(TerminalSummaryTest, JsonOptionChangesNothingInAPipe) {
  const auto run = run_command(command_of({"--json", "--ranks", "2", "--max-steps", "2"}));
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, last_line(run.output) + "\n");
  EXPECT_EQ(Json::parse(run.output)["steps"], 2);
}

TEST(TerminalSummaryTest, JsonOptionIsForExperimentsOnly) {
  const auto run = run_command({bin("sim-run"), "--json", "--ranks", "2", "--", "/bin/true"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("--json: only experiments support this option"));
}

}  // namespace
}  // namespace accel::testing::terminal_summary_test
