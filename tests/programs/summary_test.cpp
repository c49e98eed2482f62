// The line of JSON that ends a run of an experiment. Its keys and their order are a documented format that other
// programs parse, so they are pinned here for both backends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/programs/support/run_command.hpp"
#include "tests/programs/support/trace.hpp"

namespace accel::testing::summary_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Json = nlohmann::ordered_json;

CommandResult run_experiment(std::vector<std::string> options, const std::string& experiment = "mlp_sgd_seedable") {
  options.insert(options.begin(), bin("sim-run"));
  options.push_back(source("tests/programs/experiments/" + experiment + ".yaml"));
  auto run = run_command(options);
  EXPECT_EQ(run.exit_code, 0) << run.error;
  return run;
}

Json summary_of(const CommandResult& run) { return Json::parse(last_line(run.output)); }

class SummaryTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, SummaryTest, ::testing::Values("sim", "gloo"),
                         [](const auto& info) { return info.param; });

// Scripts read this line. Its keys and their order are part of the documented interface.
TEST_P(SummaryTest, LastLineHasTheKeysOfTheContractInOrder) {
  const auto run = run_experiment({"--backend", GetParam(), "--ranks", "2"});
  const auto summary = summary_of(run);
  std::vector<std::string> keys;
  for (const auto& [key, value] : summary.items()) keys.push_back(key);
  EXPECT_THAT(keys, ElementsAre("ranks", "backend", "steps", "samples", "seconds", "steps_per_second",
                                "samples_per_second", "loss", "eval_accuracy", "eval_samples", "peak_rss_bytes"));
  EXPECT_EQ(summary["ranks"], 2);
  EXPECT_EQ(summary["backend"], GetParam());
  EXPECT_EQ(summary["eval_samples"], 101);
  // 250 samples in batches of 8 are 32 batches, 16 per rank. The short last batch is filled up.
  EXPECT_EQ(summary["steps"], 2 * 16);
  EXPECT_EQ(summary["samples"], 2 * 2 * 16 * 8);
  EXPECT_GT(summary["seconds"], 0.0);
  EXPECT_NEAR(summary["steps_per_second"].get<double>() * summary["seconds"].get<double>(), 32, 1e-6);
  EXPECT_NEAR(summary["samples_per_second"].get<double>() * summary["seconds"].get<double>(), 512, 1e-6);
  EXPECT_GT(summary["eval_accuracy"], 0.3) << "ten classes, so guessing gives 0.1";
  EXPECT_LE(summary["eval_accuracy"], 1.0);
  EXPECT_GT(summary["peak_rss_bytes"], 50 << 20);
  EXPECT_THAT(run.error, IsEmpty()) << "no progress bar unless standard error is a terminal";
}

// The summary and the trace count separately, so this finds a counter that misses a rank or a step.
TEST_P(SummaryTest, NumbersAgreeWithTheTrace) {
  const TemporaryFolder folder;
  const auto file = folder.path("trace.jsonl");
  const auto summary =
      summary_of(run_experiment({"--backend", GetParam(), "--ranks", "3", "--trace", file}, "mlp_in_order"));
  std::int64_t samples = 0;
  double last_loss = 0;
  int last_step = -1;
  for (const auto& [key, line] : read_trace(file)) {
    const auto& [rank, epoch, step, kind] = key;
    if (kind != "step") continue;
    samples += line["samples"].get<std::int64_t>();
    if (rank != 0 || step < last_step) continue;
    last_step = step;
    last_loss = std::strtod(line["loss"].get<std::string>().c_str(), nullptr);
  }
  EXPECT_EQ(summary["samples"], samples);
  EXPECT_EQ(summary["steps"], last_step + 1);
  EXPECT_EQ(summary["loss"], last_loss);
  EXPECT_EQ(summary["eval_samples"], 5);
}

// The evaluation is what users compare, so a shortened training needs it too.
TEST_P(SummaryTest, MaxStepsEndsTrainingAndStillEvaluates) {
  const TemporaryFolder folder;
  const auto file = folder.path("trace.jsonl");
  const auto summary =
      summary_of(run_experiment({"--backend", GetParam(), "--ranks", "2", "--max-steps", "5", "--trace", file}));
  EXPECT_EQ(summary["steps"], 5);
  EXPECT_EQ(summary["samples"], 2 * 5 * 8);
  EXPECT_EQ(summary["eval_samples"], 101);
  int evaluations = 0;
  for (const auto& [key, line] : read_trace(file)) evaluations += std::get<3>(key) == "eval" ? 1 : 0;
  EXPECT_EQ(evaluations, 2) << "one line per rank";
}

TEST_P(SummaryTest, OneRankIsARun) {
  const auto summary = summary_of(run_experiment({"--backend", GetParam(), "--ranks", "1", "--max-steps", "2"}));
  EXPECT_EQ(summary["ranks"], 1);
  EXPECT_EQ(summary["samples"], 16);
}

// A generated text of the language model is printed first; the summary must stay the last line.
TEST_P(SummaryTest, WrittenTextComesBeforeTheLastLine) {
  const auto run =
      run_experiment({"--backend", GetParam(), "--ranks", "2", "--max-steps", "2"}, "gpt_adamw_accumulation");
  EXPECT_THAT(run.output, ::testing::StartsWith("The "));
  EXPECT_EQ(summary_of(run)["steps"], 2);
  EXPECT_EQ(summary_of(run)["eval_samples"], 20 * 12) << "bytes, in 20 blocks of 12";
}

TEST(SummaryLineTest, SetOverridesAValueOfTheFile) {
  const auto summary = summary_of(run_experiment(
      {"--set", "batch_size=5", "--set", "eval_limit=17", "--set", "model.hidden=8", "--set", "max_steps=3", "--set",
       "scheduler.name=step", "--set", "scheduler.step_size=1", "--ranks", "2"}));
  EXPECT_EQ(summary["steps"], 3);
  EXPECT_EQ(summary["samples"], 2 * 3 * 5);
  EXPECT_EQ(summary["eval_samples"], 17);
}

// JSON has no NaN; printing it would make the line unreadable for strict parsers.
TEST(SummaryLineTest, LossThatIsNotFiniteIsNull) {
  const auto summary = summary_of(
      run_experiment({"--set", "optimizer.lr=1e38", "--set", "model.hidden=16", "--ranks", "2", "--max-steps", "6"}));
  EXPECT_TRUE(summary["loss"].is_null()) << summary["loss"];
}

TEST(SummaryLineTest, FourRanksAreTheDefault) {
  EXPECT_EQ(summary_of(run_experiment({"--max-steps", "1"}))["ranks"], 4);
}

// Also if a progress bar is asked for.
TEST(SummaryLineTest, QuietRunPrintsOnlyTheSummary) {
  const auto run = run_experiment({"--quiet", "--max-steps", "1", "--progress", "on"});
  EXPECT_EQ(run.output, last_line(run.output) + "\n");
  EXPECT_THAT(run.error, IsEmpty());
}

// Otherwise it would be mixed with the line that scripts read.
TEST(SummaryLineTest, ProgressBarGoesToStandardError) {
  const auto run = run_experiment({"--backend", "gloo", "--ranks", "2", "--max-steps", "2", "--progress", "on"});
  EXPECT_THAT(run.error, ::testing::HasSubstr("| 2/2 ["));
  EXPECT_EQ(run.output, last_line(run.output) + "\n");
}

}  // namespace
}  // namespace accel::testing::summary_test
