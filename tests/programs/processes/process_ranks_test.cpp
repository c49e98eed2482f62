// `sim-run --processes`: ranks that are processes compute, fail and are diagnosed like ranks that are threads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <thread>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::process_ranks_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class ProcessRanksTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
  static CommandResult sim_run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), bin("sim-run"));
    return run_command(arguments);
  }
  // Of the fault's program, which records its processes in the folder.
  CommandResult run_fault(const std::string& mode, std::vector<std::string> options = {}) {
    std::filesystem::create_directory(path("processes"));
    options.insert(options.begin(), {"--ranks", "3", "--processes"});
    options.insert(options.end(), {"--", bin("faulty_program"), mode, path("processes")});
    return sim_run(options);
  }
  [[nodiscard]] std::vector<pid_t> processes() const {
    std::vector<pid_t> found;
    for (const auto& entry : std::filesystem::directory_iterator(path("processes")))
      found.push_back(std::stoi(entry.path().filename().string()));
    return found;
  }
  static std::string read(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::map<std::string, std::string> files_in(const std::string& folder) {
    std::map<std::string, std::string> texts;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
      if (entry.is_regular_file()) texts[entry.path().lexically_relative(folder)] = read(entry.path());
    }
    return texts;
  }

  TemporaryFolder folder_;
};

// The cases cover every law of the library; rank 0 repeats each on simulated ranks that are threads of its process.
TEST_F(ProcessRanksTest, EqualThreadsOnRandomCases) {
  for (const std::string ranks : {"2", "3", "4"}) {
    const auto run = sim_run(
        {"--ranks", ranks, "--processes", "--", bin("accel"), "test", "--inner", "--equivalence", "--cases", "10"});
    EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
    EXPECT_THAT(run.output, HasSubstr("training: 10 cases on " + ranks + " to " + ranks + " ranks, seed 1: no diff"));
  }
}

TEST_F(ProcessRanksTest, ATrainingRecordsWhatThreadsRecord) {
  for (const std::string kind : {"threads", "processes"}) {
    std::filesystem::create_directory(path(kind));
    std::vector<std::string> words{"--ranks", "3", "--record", path(kind), "--record-tensors"};
    if (kind == "processes") words.emplace_back("--processes");
    words.insert(words.end(), {"--", bin("compared_training")});
    const auto run = sim_run(words);
    ASSERT_EQ(run.exit_code, 0) << run.error;
  }
  const auto threads = files_in(path("threads"));
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(files_in(path("processes")), threads);
}

TEST_F(ProcessRanksTest, EachRankHasItsOwnGlobals) {
  const auto run = run_fault("race");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  for (const std::string rank : {"0", "1", "2"})
    EXPECT_THAT(run.output, HasSubstr("[rank " + rank + "] rank " + rank + " is number 0"));
  EXPECT_EQ(processes().size(), 3u);
}

TEST_F(ProcessRanksTest, AMismatchNamesBothLines) {
  const auto run = run_fault("skip");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.error, AllOf(HasSubstr("all_reduce #19 of group world: the ranks' calls differ"),
                               HasSubstr("rank 1: barrier() at"), HasSubstr("faulty_program.cpp:")));
}

TEST_F(ProcessRanksTest, ARankThatLeavesIsNamed) {
  const auto run = run_fault("leave");
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.error, AllOf(HasSubstr("hang: every rank is blocked or has ended"),
                               HasSubstr("missing: rank 1 has ended its program, after all_reduce #6 of group world")));
}

TEST_F(ProcessRanksTest, AnErrorOfOneRankEndsTheRun) {
  const auto run = run_fault("throw");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1: the ink has run out"),
                               HasSubstr("ranks 0, 2: released from waiting by this failure")));
}

TEST_F(ProcessRanksTest, ADeathIsReportedWithTheLastCall) {
  const auto run = run_fault("die");
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1: the process was killed by signal 9 (Killed); its last call: "
                                         "all_reduce #6 of group world"),
                               HasSubstr("ranks 0, 2: released from waiting by this failure")));
}

// The rank blocks in its own code, which nobody can see: the time-out finds it, and its process is ended.
TEST_F(ProcessRanksTest, ARankThatNeverReturnsIsEnded) {
  std::filesystem::create_directory(path("processes"));
  const auto run = run_command(
      {bin("sim-run"), "--ranks", "3", "--processes", "--", bin("faulty_program"), "hang", path("processes")},
      {.environment = {{"ACCEL_TIMEOUT_SECONDS", "1"}}});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank 1"), HasSubstr("all_reduce #7 of group world")));
  EXPECT_EQ(processes().size(), 3u);
  for (const auto pid : processes()) EXPECT_NE(kill(pid, 0), 0) << pid << " still runs";
}

TEST_F(ProcessRanksTest, ASeedReplaysTheOrderOfEvents) {
  std::map<std::string, std::string> logs;
  for (const std::string name : {"first", "second", "other"}) {
    const auto run = run_fault(
        "ok", {"--schedule", "random", "--seed-schedule", name == "other" ? "8" : "7", "--event-log", path(name)});
    ASSERT_EQ(run.exit_code, 0) << run.error;
    logs[name] = read(path(name));
  }
  EXPECT_FALSE(logs["first"].empty());
  EXPECT_EQ(logs["first"], logs["second"]);
  EXPECT_NE(logs["first"], logs["other"]);
}

TEST_F(ProcessRanksTest, FaultsStrikeProcesses) {
  std::ofstream(path("faults.yaml"))
      << "faults:\n  - {kind: rank_crash_before_collective, rank: 2, when: {collective: 5}}\n";
  const auto run = run_fault("ok", {"--faults", path("faults.yaml"), "--diagnosis", path("diagnosis.json")});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(run.error, HasSubstr("rank_crash_before_collective on rank 2"));
  EXPECT_THAT(read(path("diagnosis.json")), HasSubstr("rank_crash_before_collective"));
}

TEST_F(ProcessRanksTest, TensorsOfPendingCallsMayNotBeTouched) {
  auto run = run_fault("read_early");
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(run.error, AllOf(HasSubstr("all_reduce #20 of group world"), HasSubstr("has not waited for it"),
                               HasSubstr("its tensor is read by aten::add before wait()")));
  std::filesystem::remove_all(path("processes"));
  run = run_fault("change_early");
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(run.error, HasSubstr("its tensor is changed before wait()"));
}

TEST_F(ProcessRanksTest, AFaultRestartsProcesses) {
  std::ofstream(path("faults.yaml")) << "faults:\n  - {kind: rank_restart, rank: 1, when: {step: 2}}\n";
  std::filesystem::create_directory(path("records"));
  const auto run = sim_run({"--ranks", "3", "--processes", "--faults", path("faults.yaml"), "--record", path("records"),
                            "--diagnosis", path("diagnosis.json"), "--", bin("compared_training")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.error, Not(HasSubstr("has not struck")));
  EXPECT_THAT(read(path("diagnosis.json")), HasSubstr("rank_restart on rank 1"));
  EXPECT_THAT(run.output, HasSubstr("started again: 1"));
  // Both attempts record: the first has begun step 0 to 2, the second all four.
  std::vector<int> steps;
  std::ifstream record(path("records/rank1.jsonl"));
  for (std::string line; std::getline(record, line);) {
    const auto json = nlohmann::json::parse(line);
    if (json["kind"] == "loss") steps.push_back(json["step"]);
  }
  EXPECT_THAT(steps, ::testing::ElementsAre(0, 1, 2, 0, 1, 2, 3));
}

TEST_F(ProcessRanksTest, AProcessDiesInATornWrite) {
  std::ofstream(path("faults.yaml")) << "faults:\n  - {kind: torn_write, rank: 1, file: state, bytes: 100}\n";
  const auto run = run_fault("save", {"--faults", path("faults.yaml")});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(run.error, AllOf(HasSubstr("processes/state; 100 bytes of it reached the disk"),
                               HasSubstr("ranks 0, 2: Connection closed by peer")));
  EXPECT_EQ(std::filesystem::file_size(path("processes/state")), 100u);
}

TEST_F(ProcessRanksTest, TheDiskOfAProcessIsFull) {
  std::ofstream(path("faults.yaml")) << "faults:\n  - {kind: disk_full, rank: 1, after_bytes: 300}\n";
  const auto run = run_fault("save", {"--faults", path("faults.yaml")});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(run.error, HasSubstr("rank 1: the state cannot be saved: No space left on device"));
  EXPECT_EQ(std::filesystem::file_size(path("processes/state")), 300u);
}

TEST_F(ProcessRanksTest, AProgramThatCannotBeStartedIsAnError) {
  const auto run = sim_run({"--ranks", "3", "--processes", "--", path("missing")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("missing"));
}

TEST_F(ProcessRanksTest, BadInputIsOneError) {
  auto run = sim_run({"--processes", "--ranks", "5000", "--", bin("faulty_program"), "ok", path("")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("5000"));
  run = sim_run({"--processes", "--backend", "gloo", "--", bin("faulty_program"), "ok", path("")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("--processes: only simulated ranks"));
  run = sim_run({"--processes", source("tests/programs/experiments/mlp_sgd_seedable.yaml")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("--processes: "));
  run = sim_run({"--processes", "--", "true"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, HasSubstr("'true' ended with exit code 0 without calling accel::run"));
}

}  // namespace
}  // namespace accel::testing::process_ranks_test
