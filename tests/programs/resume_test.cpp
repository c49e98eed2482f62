// sim-run --save-every and --resume: the trace of a training in several processes equals, line by line, the trace
// of the uninterrupted one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/programs/support/run_command.hpp"
#include "tests/programs/support/trace.hpp"

namespace accel::testing::resume_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

class ResumeTest : public ::testing::Test {
 protected:
  CommandResult run(const std::string& experiment, int ranks, const std::string& backend,
                    std::vector<std::string> options) {
    options.insert(options.begin(),
                   {bin("sim-run"), "--backend", backend, "--ranks", std::to_string(ranks), "--quiet"});
    options.push_back(source("tests/programs/experiments/" + experiment + ".yaml"));
    return run_command(options);
  }
  Trace traced(const std::string& experiment, int ranks, const std::string& backend, std::vector<std::string> options) {
    const auto file = folder_.path("trace.jsonl");
    options.insert(options.end(), {"--trace", file});
    const auto result = run(experiment, ranks, backend, options);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    return read_trace(file);
  }

  TemporaryFolder folder_;
  std::string project_ = folder_.path("project");
};

// Returns the lines of the uninterrupted run that a resumed run has too: those after the step at which it was
// saved.
Trace steps_after(const Trace& uncut, const Trace& resumed) {
  Trace lines;
  for (const auto& [key, line] : uncut) {
    if (resumed.contains(key)) lines.emplace(key, line);
  }
  return lines;
}

struct Cut {
  std::string experiment;
  int ranks;
  std::string backend;
  int save_every;
};

// The trace contains every loss and a hash of all parameters, so any part of the state that is lost shows.
TEST_F(ResumeTest, AResumedTrainingHasTheTraceOfTheUninterruptedOne) {
  // Each experiment adds a part of the state: momentum, windows, bf16, sharding, batch-norm buffers.
  const std::vector<Cut> cuts{{"mlp_sgd_seedable", 3, "sim", 3},
                              {"cnn_adamw_accumulation", 3, "sim", 2},
                              {"cnn_adamw_accumulation", 2, "gloo", 3},
                              {"gpt_bf16", 2, "sim", 2},
                              {"gpt_fsdp", 3, "sim", 1},
                              {"resnet_sgd", 2, "sim", 1}};
  for (const auto& [experiment, ranks, backend, save_every] : cuts) {
    SCOPED_TRACE(experiment + " " + backend);
    std::filesystem::remove_all(project_);
    const auto uncut =
        traced(experiment, ranks, backend, {"--project-dir", project_, "--save-every", std::to_string(save_every)});
    for (const auto& checkpoint : std::filesystem::directory_iterator(project_ + "/checkpoints")) {
      const auto resumed = traced(experiment, ranks, backend, {"--resume", checkpoint.path().string()});
      EXPECT_THAT(differences(steps_after(uncut, resumed), resumed), IsEmpty()) << checkpoint.path();
      const auto ends = std::count_if(resumed.begin(), resumed.end(),
                                      [](const auto& line) { return std::get<3>(line.first) == "end"; });
      const auto evaluations = std::count_if(resumed.begin(), resumed.end(),
                                             [](const auto& line) { return std::get<3>(line.first) == "eval"; });
      EXPECT_EQ(ends, ranks);
      EXPECT_GE(evaluations, ranks) << "a checkpoint at the end of an epoch precedes its evaluation";
    }
  }
}

// A checkpoint must not depend on the backend that wrote it.
TEST_F(ResumeTest, RealProcessesResumeACheckpointOfTheSimulator) {
  const std::string experiment = "mlp_sgd_seedable";
  const auto uncut = traced(experiment, 2, "sim", {});
  traced(experiment, 2, "sim", {"--project-dir", project_, "--save-every", "2", "--max-steps", "4"});
  const auto resumed =
      traced(experiment, 2, "gloo", {"--resume", project_, "--project-dir", project_, "--save-every", "2"});
  EXPECT_THAT(differences(steps_after(uncut, resumed), resumed), IsEmpty());
  EXPECT_TRUE(std::filesystem::exists(project_ + "/checkpoints/checkpoint_2"));
}

// The restart is simulated: rank 1 fails, and all ranks start again from the newest checkpoint.
TEST_F(ResumeTest, ARestartedTrainingResumesFromItsCheckpoints) {
  const std::string experiment = "cnn_adamw_accumulation";
  const auto uncut = traced(experiment, 3, "sim", {});
  for (const int step : {1, 3, 5}) {  // before the first checkpoint, after it, after the second
    SCOPED_TRACE(step);
    std::filesystem::remove_all(project_);
    const auto faults = folder_.write(
        "restart.yaml", "faults:\n  - {kind: rank_restart, rank: 1, when: {step: " + std::to_string(step) + "}}\n");
    const auto events = folder_.path("events.jsonl");
    const auto restarted = traced(experiment, 3, "sim",
                                  {"--project-dir", project_, "--save-every", "2", "--faults", faults, "--event-log",
                                   events, "--schedule", "round-robin"});
    EXPECT_THAT(differences(steps_after(uncut, restarted), restarted), IsEmpty());
    std::ifstream in(events);
    int begun = 0;
    for (std::string line; std::getline(in, line);)
      begun += line.find(R"("event":"begin")") != std::string::npos ? 1 : 0;
    EXPECT_EQ(begun, 2 * 3) << "the log is of both attempts";
    const auto is_first_step = [](const auto& line) { return std::get<2>(line.first) == 0; };
    EXPECT_EQ(std::none_of(restarted.begin(), restarted.end(), is_first_step), step > 2)
        << "saved steps are not repeated";
  }
}

// The project folder holds checkpoints that are newer than --resume's. A restart must use only what this run saved.
TEST_F(ResumeTest, ARestartedTrainingIgnoresCheckpointsOfAnother) {
  const std::string experiment = "cnn_adamw_accumulation";
  traced(experiment, 2, "sim", {"--project-dir", project_, "--save-every", "3"});
  const auto first = project_ + "/checkpoints/checkpoint_0";
  const auto resumed = traced(experiment, 2, "sim", {"--resume", first});
  const auto faults = folder_.write("restart.yaml", "faults:\n  - {kind: rank_restart, rank: 1, when: {step: 1}}\n");
  const auto restarted = traced(
      experiment, 2, "sim", {"--resume", first, "--project-dir", project_, "--save-every", "6", "--faults", faults});
  EXPECT_THAT(differences(resumed, restarted), IsEmpty());
}

// As a user sees it: a rank dies in the middle, and the next run resumes from the newest checkpoint.
TEST_F(ResumeTest, ARunThatDiedIsResumedToTheSameParameters) {
  const std::string experiment = "mlp_sgd_seedable";
  const auto uncut = traced(experiment, 4, "sim", {});
  const auto faults = folder_.write(
      "faults.yaml", "seed: 1\nfaults:\n  - {kind: rank_crash_before_optimizer_step, rank: 2, when: {step: 3}}\n");
  EXPECT_EQ(run(experiment, 4, "sim", {"--project-dir", project_, "--save-every", "1", "--faults", faults}).exit_code,
            3);
  const auto resumed = traced(experiment, 4, "sim", {"--resume", project_});
  EXPECT_THAT(differences(steps_after(uncut, resumed), resumed), IsEmpty());
}

// The process of a rank dies while it writes. The previous checkpoint must still be complete.
TEST_F(ResumeTest, ATornWriteAndAFullDiskLeaveTheLastCheckpoint) {
  const std::string experiment = "mlp_sgd_seedable";
  for (const std::string fault :
       {"{kind: torn_write, rank: 0, file: optimizer.bin}", "{kind: torn_write, rank: 2, file: random_states}",
        // 9000 bytes end within a file of rank 1, so the file is cut and not missing.
        "{kind: disk_full, rank: 1, after_bytes: 9000}"}) {
    SCOPED_TRACE(fault);
    std::filesystem::remove_all(project_);
    ASSERT_EQ(run(experiment, 4, "sim", {"--project-dir", project_, "--save-every", "2", "--max-steps", "2"}).exit_code,
              0);
    const auto faults = folder_.write("faults.yaml", "seed: 1\nfaults:\n  - " + fault + "\n");
    const auto died = run(experiment, 4, "sim",
                          {"--resume", project_, "--project-dir", project_, "--save-every", "2", "--faults", faults});
    EXPECT_EQ(died.exit_code, 3) << died.error;
    const auto resumed = traced(experiment, 4, "sim", {"--resume", project_});
    EXPECT_THAT(differences(steps_after(traced(experiment, 4, "sim", {}), resumed), resumed), IsEmpty());
  }
}

// Counters of earlier processes are in the checkpoint, but time and samples per second are about this process only.
TEST_F(ResumeTest, TheSummaryCountsThisProcess) {
  ASSERT_EQ(
      run("mlp_sgd_seedable", 2, "sim", {"--project-dir", project_, "--save-every", "3", "--max-steps", "3"}).exit_code,
      0);
  const auto result = run("mlp_sgd_seedable", 2, "sim", {"--resume", project_, "--max-steps", "5"});
  const auto summary = nlohmann::json::parse(last_line(result.output));
  EXPECT_EQ(summary["steps"], 2);
  EXPECT_GT(summary["eval_samples"], 0);
  const auto none = nlohmann::json::parse(
      last_line(run("mlp_sgd_seedable", 2, "sim", {"--resume", project_, "--max-steps", "3"}).output));
  EXPECT_EQ(none["steps"], 0);
  EXPECT_TRUE(none["loss"].is_null());
  EXPECT_GT(none["eval_samples"], 0);
}

// A training without saves would only be noticed when it has to be resumed.
TEST_F(ResumeTest, WrongOptionsAreOneErrorBeforeAnythingRuns) {
  const std::string experiment = "mlp_sgd_seedable";
  const auto expect_refused = [&](const std::vector<std::string>& options, const std::string& message) {
    const auto result = run(experiment, 2, "sim", options);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.error, HasSubstr(message));
  };
  expect_refused({"--project-dir", project_}, "--project-dir and --save-every: only one was given");
  expect_refused({"--save-every", "2"}, "--project-dir and --save-every: only one was given");
  expect_refused({"--project-dir", project_, "--save-every", "0"}, "--save-every: expected 1 or more, got 0");
  expect_refused({"--resume", project_}, "--resume: " + project_ + ": no such folder");
  ASSERT_EQ(run(experiment, 2, "sim", {"--project-dir", project_, "--save-every", "2", "--max-steps", "2"}).exit_code,
            0);
  expect_refused({"--project-dir", project_, "--save-every", "2"}, "holds checkpoints of another training");
}

}  // namespace
}  // namespace accel::testing::resume_test
