// Schedules, faults, virtual time, exploring and the report page, as a user of sim-run meets them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/programs/support/run_command.hpp"

namespace accel::testing::rehearsal_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Json = nlohmann::ordered_json;

const std::string kExact =
    "configs/sim/networks/nvlink_8.yaml";  // compute costs come from a table, so virtual time is exact

class RehearsalTest : public ::testing::Test {
 protected:
  [[nodiscard]] std::string path(const std::string& name) const { return folder_.path(name); }
  static std::string read(const std::string& file) {
    std::ifstream in(file);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::vector<std::string> sorted_lines(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> lines;
    for (std::string line; std::getline(in, line);) lines.push_back(line);
    std::sort(lines.begin(), lines.end());
    return lines;
  }
  static CommandResult sim_run(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), bin("sim-run"));
    return run_command(arguments);
  }
  static std::string experiment() { return source("tests/programs/experiments/mlp_sgd_seedable.yaml"); }
  // Eight steps on 32 evaluation samples keep a run below a second.
  static CommandResult train(std::vector<std::string> options) {
    options.insert(options.end(), {"--max-steps", "8", "--set", "eval_limit=32", experiment()});
    return sim_run(options);
  }
  [[nodiscard]] Json diagnosis() const { return Json::parse(read(path("diagnosis.json"))); }
  [[nodiscard]] std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name)) << text;
    return path(name);
  }

  TemporaryFolder folder_;
};

// Lines are sorted because ranks write them in the order of the schedule.
TEST_F(RehearsalTest, EveryScheduleComputesTheSame) {
  ASSERT_EQ(train({"--ranks", "3", "--trace", path("parallel")}).exit_code, 0);
  for (const std::string schedule : {"round-robin", "random", "pct"}) {
    ASSERT_EQ(
        train({"--ranks", "3", "--schedule", schedule, "--seed-schedule", "5", "--trace", path(schedule)}).exit_code,
        0);
    EXPECT_EQ(sorted_lines(read(path(schedule))), sorted_lines(read(path("parallel")))) << schedule;
  }
}

// A failure that depends on the order of the ranks can only be repeated if the seed fixes every event. Another seed
// has to give another order, or exploring would try the same one again.
TEST_F(RehearsalTest, OneSeedIsOneOrderOfEvents) {
  const auto log = [&](const std::string& seed, const std::string& name) {
    EXPECT_EQ(
        train({"--ranks", "4", "--schedule", "random", "--seed-schedule", seed, "--event-log", path(name)}).exit_code,
        0);
    return read(path(name));
  };
  const auto first = log("7", "a");
  EXPECT_THAT(first, AllOf(HasSubstr(R"({"event":"begin","rank":)"),
                           HasSubstr(R"("op":"all_reduce","group":"world","sequence":)")));
  EXPECT_EQ(log("7", "b"), first);
  EXPECT_NE(log("8", "c"), first);
}

// The seed is 64-bit unsigned; a parser of signed numbers would reject the upper half or wrap.
TEST_F(RehearsalTest, SeedIsAnyUnsignedIntegerOf64Bits) {
  const auto codes = [&](const std::string& seed) {
    const std::vector<std::string> options{"--ranks", "2", "--schedule", "random", "--seed-schedule", seed};
    auto with_program = options;
    with_program.insert(with_program.end(), {"--", bin("faulty_program"), "ok", path("")});
    return std::pair(train(options).exit_code, sim_run(with_program).exit_code);
  };
  for (const std::string seed : {"0", "9223372036854775808", "18446744073709551615"})
    EXPECT_EQ(codes(seed), std::pair(0, 0)) << seed;
  for (const std::string seed : {"-1", "18446744073709551616", "one"}) EXPECT_EQ(codes(seed), std::pair(2, 2)) << seed;
}

// Scripts read the file after every run, so it must also exist, and say "none", after a good one.
TEST_F(RehearsalTest, DiagnosisIsWrittenOfARunThatEndsWell) {
  ASSERT_EQ(train({"--ranks", "2", "--diagnosis", path("diagnosis.json")}).exit_code, 0);
  EXPECT_EQ(diagnosis()["kind"], "none");
  EXPECT_TRUE(diagnosis()["op"].is_null());
}

TEST_F(RehearsalTest, FaultThatStopsARunIsItsDiagnosis) {
  const auto faults =
      write("faults.yaml", "faults:\n  - {kind: rank_crash_before_optimizer_step, rank: 2, when: {step: 5}}\n");
  const auto run = train({"--ranks", "4", "--faults", faults, "--diagnosis", path("diagnosis.json")});
  EXPECT_EQ(run.exit_code, 3);
  EXPECT_THAT(run.error, AllOf(HasSubstr("rank_crash_before_optimizer_step on rank 2 at step 5"),
                               HasSubstr("Connection closed by peer")));
  EXPECT_EQ(diagnosis()["kind"], "fault");
  EXPECT_EQ(diagnosis()["fault"], "rank_crash_before_optimizer_step");
  EXPECT_EQ(diagnosis()["ranks"], Json({2}));
}

// The planted mistake of "skip": rank 1 leaves out its 20th all-reduce.
TEST_F(RehearsalTest, ProgramOfTheUsersOwnIsDiagnosedByFileAndLine) {
  const auto run = sim_run({"--ranks", "4", "--diagnosis", path("diagnosis.json"), "--event-log", path("events"), "--",
                            bin("faulty_program"), "skip", path("")});
  EXPECT_EQ(run.exit_code, 3);
  const auto written = diagnosis();
  EXPECT_EQ(written["kind"], "desync");
  EXPECT_EQ(written["ranks"], Json({1}));
  EXPECT_EQ(written["op"], "all_reduce");
  EXPECT_EQ(written["sequence"], 19);
  EXPECT_THAT(written["where"].get<std::string>(), HasSubstr("faulty_program.cpp:"));
  EXPECT_EQ(written["first_difference"]["calls"].size(), 2u);
  EXPECT_THAT(read(path("events")), StartsWith(R"({"event":)"));
}

// An exception of the program is not a hang: exit code 1 and another kind, so that scripts can tell them apart.
TEST_F(RehearsalTest, RankThatThrowsIsARankFailure) {
  const auto run =
      sim_run({"--ranks", "3", "--diagnosis", path("diagnosis.json"), "--", bin("faulty_program"), "throw", path("")});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(diagnosis()["kind"], "rank_failure");
  EXPECT_EQ(diagnosis()["ranks"], Json({1}));
  EXPECT_THAT(diagnosis()["text"].get<std::string>(), HasSubstr("the ink has run out"));
}

// The rank loops forever outside any collective, so its thread cannot be joined. The process must still end.
TEST_F(RehearsalTest, RankStuckOutsideTheLibraryIsDiagnosedAndTheProgramEnds) {
  for (const std::string schedule : {"parallel", "round-robin"}) {
    const auto run = run_command(
        {bin("sim-run"), "--ranks", "4", "--schedule", schedule, "--diagnosis", path("diagnosis.json"), "--timeline",
         path("timeline.json"), "--report", path("report"), "--", bin("faulty_program"), "hang", path("")},
        {.environment = {{"ACCEL_TIMEOUT_SECONDS", "1"}}, .limit = std::chrono::seconds(30)});
    EXPECT_EQ(run.exit_code, 3) << run.error;
    EXPECT_THAT(
        run.error,
        AllOf(HasSubstr("timed out after 1000 ms"),
              HasSubstr(
                  "rank 1: has not returned from its own code; it is running, after all_reduce #6 of group world (")));
    EXPECT_EQ(diagnosis()["kind"], "hang");
    EXPECT_EQ(diagnosis()["ranks"], Json({1}));
    EXPECT_THAT(read(path("report") + "/index.html"), HasSubstr("timed out after 1000 ms"));
    EXPECT_THAT(run.error, HasSubstr("--timeline: not written"));
  }
}

// A stuck trial must not stop the exploration of the following ones.
TEST_F(RehearsalTest, ExploringEndsATrialWhoseRankIsStuck) {
  const auto run = run_command(
      {bin("sim-run"), "explore", "--schedules", "1", "--ranks", "2", "--", bin("faulty_program"), "hang", path("")},
      {.environment = {{"ACCEL_TIMEOUT_SECONDS", "1"}}});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(Json::parse(run.output)["found"]["signature"].get<std::string>(), StartsWith("hang"));
}

// The table on the terminal, the summary in JSON and the page all have to be there, for each number of ranks.
TEST_F(RehearsalTest, NetworkGivesAPredictionForEveryNumberOfRanks) {
  const auto run = train(
      {"--ranks", "2,4", "--network", source("configs/sim/networks/ethernet_25g.yaml"), "--report", path("report")});
  ASSERT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(run.output, AllOf(HasSubstr("efficiency"), HasSubstr("exposed communication"),
                                HasSubstr("straggler wait"), HasSubstr("\n     2 "), HasSubstr("\n     4 ")));
  EXPECT_EQ(Json::parse(run.output.substr(run.output.rfind("\n{") + 1))["ranks"], 4);
  const auto page = read(path("report") + "/index.html");
  EXPECT_THAT(page,
              AllOf(StartsWith("<!"), HasSubstr("all_reduce"), HasSubstr("mlp_sgd_seedable on 4 simulated ranks")));
}

TEST_F(RehearsalTest, ThePageOfARunWithoutANetworkHasTheWallsTimesAndVolumes) {
  ASSERT_EQ(train({"--ranks", "2", "--report", path("report")}).exit_code, 0);
  const auto page = read(path("report") + "/index.html");
  const auto section = [&](const std::string& id) {
    const auto begin = page.find("id=\"" + id + "\"");
    return page.substr(begin, page.find("</section>", begin) - begin);
  };
  EXPECT_THAT(section("step-time"), AllOf(HasSubstr("rank 1"), HasSubstr("<svg")));
  EXPECT_THAT(section("communication"), AllOf(HasSubstr("all_reduce"), HasSubstr("<svg")));
}

// The first step includes set-up, so a prediction needs a second one.
TEST_F(RehearsalTest, OneOptimizerStepGivesNoPrediction) {
  for (const auto& [steps, is_known] : {std::pair("1", false), {"2", true}}) {
    const auto run = sim_run(
        {"--ranks", "2", "--network", source(kExact), "--max-steps", steps, "--set", "eval_limit=32", experiment()});
    ASSERT_EQ(run.exit_code, 0) << run.error;
    EXPECT_EQ(run.output.find("efficiency") != std::string::npos, is_known);
    EXPECT_EQ(
        run.output.find("no prediction for 2 ranks: the run made fewer than two optimizer steps") != std::string::npos,
        !is_known);
  }
}

// A sweep of hours must not fail at its last number of ranks.
TEST_F(RehearsalTest, SweepIsCheckedBeforeAnyOfItsRuns) {
  const auto run = train({"--ranks", "2,16,32", "--network", source(kExact)});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.output, "");
  EXPECT_THAT(run.error, AllOf(HasSubstr("16"), HasSubstr("32"), HasSubstr("the topology holds 8 ranks")));
}

// All runs of a sweep would write to the same files, and only the last one's would remain.
TEST_F(RehearsalTest, SweepRejectsFilesThatItsRunsWouldOverwrite) {
  const auto run = train({"--ranks", "2,4", "--trace", path("trace"), "--event-log", path("events"), "--timeline",
                          path("timeline"), "--diagnosis", path("diagnosis.json")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_EQ(run.error,
            "sim-run: --ranks 2,4: the runs would overwrite each other's --trace, --event-log, --diagnosis, "
            "--timeline; give these with one number of ranks\n");
  EXPECT_THAT(folder_.files(), ::testing::IsEmpty());
}

// A fault planned for step 200 of 8 never occurs, and the run would pass for the wrong reason.
TEST_F(RehearsalTest, AFaultThatNeverOccurredIsReported) {
  for (const auto& [step, has_struck] : {std::pair(200, false), {2, true}}) {
    const auto faults =
        write("pause.yaml",
              "faults:\n  - {kind: rank_pause, rank: 1, seconds: 0.01, when: {step: " + std::to_string(step) + "}}\n");
    const auto run = train({"--ranks", "2", "--faults", faults, "--diagnosis", path("diagnosis.json")});
    EXPECT_EQ(run.exit_code, 0);
    EXPECT_EQ(run.error.find("the fault has not struck") == std::string::npos, has_struck) << run.error;
    EXPECT_EQ(diagnosis()["text"].dump().find("the fault has not struck") == std::string::npos, has_struck);
  }
}

// A hang in step 0 leaves nothing to draw; one in step 5 leaves losses and memory of five steps.
TEST_F(RehearsalTest, ThePageOfARunThatFailsShowsWhatItHad) {
  for (const auto& [step, was_measured] : {std::pair(0, false), {5, true}}) {
    const auto faults =
        write("hang.yaml", "faults:\n  - {kind: rank_hang, rank: 1, when: {step: " + std::to_string(step) + "}}\n");
    EXPECT_EQ(train({"--ranks", "2", "--faults", faults, "--report", path("report")}).exit_code, 3);
    const auto page = read(path("report") + "/index.html");
    EXPECT_EQ(page.find("No loss was recorded") == std::string::npos, was_measured);
    EXPECT_EQ(page.find("memory was measured") == std::string::npos, was_measured);
  }
}

// With exact costs and a fixed seed nothing depends on the machine, so two runs must agree byte for byte.
TEST_F(RehearsalTest, TimelineOfExactCostsIsTheSameFileAgain) {
  const auto timeline = [&](const std::string& name) {
    EXPECT_EQ(train({"--ranks", "4", "--schedule", "random", "--seed-schedule", "3", "--clock", "virtual", "--network",
                     source(kExact), "--timeline", path(name)})
                  .exit_code,
              0);
    return read(path(name));
  };
  const auto first = timeline("a.json");
  EXPECT_EQ(timeline("b.json"), first);
  EXPECT_GT(Json::parse(first)["traceEvents"].size(), 4u * 8 * 3) << "each step computes, reduces and waits";
  // Perfetto's protobuf begins with the tag of a packet: 10.
  EXPECT_THAT(timeline("a.pftrace"), AllOf(StartsWith("\n"), HasSubstr("rank 3 collectives")));
}

// 200 kB at 10 MB/s is 20 ms, at 1 TB/s less than a microsecond.
TEST_F(RehearsalTest, SlowNetworkTakesLonger) {
  const auto step_of = [&](const std::string& bytes_per_second) {
    const auto network = write(
        "network.yaml",
        "name: one\nlibrary: gloo\noverhead_seconds: 1.0e-6\nreduce_seconds_per_byte: 1.0e-12\ntopology: {kind: full, "
        "latency_seconds: 1.0e-6, bytes_per_second: " +
            bytes_per_second +
            "}\ncompute: {kind: table, launch_seconds: 1.0e-6, flops_per_second: 1.0e12, bytes_per_second: 1.0e12}\n");
    const auto run = train({"--ranks", "4", "--network", network, "--schedule", "round-robin"});
    EXPECT_EQ(run.exit_code, 0) << run.error;
    return run.output.substr(0, run.output.find("\n{"));
  };
  const auto fast = step_of("1.0e12"), again = step_of("1.0e12"), slow = step_of("1.0e7");
  EXPECT_EQ(fast, again);
  EXPECT_THAT(fast, HasSubstr(" µs"));
  EXPECT_THAT(slow, HasSubstr(" ms")) << "200 kB of gradients at 10 MB/s";
}

TEST_F(RehearsalTest, ExploringFindsNothingInAProgramThatIsRight) {
  const auto run = sim_run(
      {"explore", "--schedules", "5", "--ranks", "3", "--max-steps", "2", "--set", "eval_limit=32", experiment()});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, "{\"schedules\":5,\"found\":null}\n");
}

// Without the depth in the command, replaying would use another schedule and not fail.
TEST_F(RehearsalTest, TheDepthOfPctDecidesTheScheduleAndIsInTheLineThatReplays) {
  const auto log_of = [&](const std::string& depth) {
    const auto log = path("events.jsonl");
    EXPECT_EQ(
        train({"--ranks", "3", "--schedule", "pct", "--seed-schedule", "2", "--pct-depth", depth, "--event-log", log})
            .exit_code,
        0);
    return read(log);
  };
  EXPECT_EQ(log_of("40"), log_of("40"));
  EXPECT_NE(log_of("40"), log_of("1"));
  const auto run = sim_run({"explore", "--schedules", "3", "--ranks", "4", "--schedule", "pct", "--pct-depth", "7",
                            "--", bin("faulty_program"), "skip", path("")});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  EXPECT_THAT(Json::parse(run.output)["found"]["replay"].get<std::string>(),
              HasSubstr("--schedule pct --seed-schedule 0 --pct-depth 7"));
}

TEST_F(RehearsalTest, ExploringShrinksAFailureAndPrintsTheReplayCommand) {
  const auto faults = write("faults.yaml",
                            "seed: 3\nfaults:\n  - {kind: rank_pause, rank: 1, seconds: 0.001}\n"
                            "  - {kind: wrong_call, rank: 1, what: reduce_op, when: {step: 2}}\n  - {kind: slow_rank, "
                            "rank: 0, factor: 1.5}\n");
  const auto run =
      run_command({"/bin/sh", "-c",
                   "cd \"$1\" && \"$2\" explore --schedules 5 --ranks 5 --faults \"$3\" --set eval_limit=32 \"$4\"",
                   "sh", path(""), bin("sim-run"), faults, experiment()});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  const auto found = Json::parse(run.output)["found"];
  EXPECT_EQ(found["signature"], "fault wrong_call");
  // Shrunk to two ranks, three steps and the one fault that matters.
  EXPECT_EQ(found["ranks"], 2);
  EXPECT_EQ(found["max_steps"], 3);
  EXPECT_EQ(found["faults"].size(), 1u);
  EXPECT_EQ(run.error.find("has not struck"), std::string::npos) << "but in the runs that make it small";
  const auto replayed = run_command({"/bin/sh", "-c", "cd \"$1\" && PATH=$(dirname \"$2\"):$PATH && eval \"$3\"", "sh",
                                     path(""), bin("sim-run"), found["replay"].get<std::string>()});
  EXPECT_EQ(replayed.exit_code, 3);
  EXPECT_THAT(replayed.error, HasSubstr("wrong_call on rank 1"));
}

// The program prints the order in which its ranks finish: a race that no single run can show.
TEST_F(RehearsalTest, ExploringFindsAResultThatDependsOnTheSchedule) {
  const auto run =
      sim_run({"explore", "--schedules", "50", "--ranks", "4", "--", bin("faulty_program"), "race", path("")});
  EXPECT_EQ(run.exit_code, 1) << run.error;
  const auto found = Json::parse(run.output)["found"];
  EXPECT_EQ(found["signature"], "differs");
  EXPECT_EQ(found["ranks"], 2);
  EXPECT_THAT(
      found["difference"].get<std::string>(),
      AllOf(HasSubstr("losses and parameters are equal; the program prints 'rank "), HasSubstr(", but 'rank ")));
}

TEST_F(RehearsalTest, ExploringNamesTheRankTheStepAndTheParameterThatDiffer) {
  for (const std::string mode : {"prints", "silent"}) {
    const auto run = sim_run({"explore", "--schedules", "50", "--ranks", "3", "--", bin("racy_training"), mode});
    EXPECT_EQ(run.exit_code, 1) << run.error;
    const auto found = Json::parse(run.output)["found"];
    EXPECT_EQ(found["signature"], "differs");
    const std::string difference = found["difference"];
    EXPECT_THAT(difference, AllOf(HasSubstr("rank 0, step 3: the loss is "), HasSubstr(" when the ranks take turns")));
    EXPECT_THAT(run.error, HasSubstr(difference));
  }
}

// The losses of all ranks are equal, so the parameter that differs is named instead.
TEST_F(RehearsalTest, AParameterThatDiffersIsNamedWithItsUpdate) {
  const auto run = sim_run({"explore", "--schedules", "50", "--ranks", "3", "--", bin("racy_training"), "noise"});
  EXPECT_EQ(run.exit_code, 1) << run.error;
  EXPECT_THAT(run.error, HasSubstr("the first parameter that differs is weight, after update 3 of rank 0"));
}

// Otherwise the user would take the result for a proof that the program survives the fault.
TEST_F(RehearsalTest, ExploringReportsAFaultThatNeverOccurred) {
  const auto faults = write("late.yaml", "faults:\n  - {kind: rank_pause, rank: 1, when: {collective: 100000}}\n");
  const auto of_experiment = sim_run({"explore", "--schedules", "2", "--ranks", "2", "--faults", faults, "--max-steps",
                                      "2", "--set", "eval_limit=32", experiment()});
  const auto of_program = sim_run(
      {"explore", "--schedules", "2", "--ranks", "2", "--faults", faults, "--", bin("faulty_program"), "ok", path("")});
  for (const auto& run : {of_experiment, of_program}) {
    EXPECT_EQ(run.exit_code, 0) << run.error;
    const std::string warning = "the fault has not struck";
    EXPECT_THAT(run.error, HasSubstr(warning));
    EXPECT_EQ(run.error.find(warning), run.error.rfind(warning)) << "once";
  }
}

TEST_F(RehearsalTest, ExploringRejectsAProgramWithoutRanks) {
  const auto run = sim_run({"explore", "--schedules", "3", "--", "/bin/true"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_EQ(run.output, "");
  EXPECT_THAT(run.error, HasSubstr("'/bin/true' ended without calling accel::run"));
}

TEST_F(RehearsalTest, ExploringAcceptsAUsersProgram) {
  const auto run =
      sim_run({"explore", "--schedules", "3", "--ranks", "4", "--", bin("faulty_program"), "skip", path("")});
  EXPECT_EQ(run.exit_code, 3) << run.error;
  const auto found = Json::parse(run.output)["found"];
  EXPECT_EQ(found["signature"], "desync in all_reduce of group world");
  EXPECT_EQ(found["ranks"], 2);
}

}  // namespace
}  // namespace accel::testing::rehearsal_test
