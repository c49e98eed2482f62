// Mistakes of distributed programs on four real Gloo processes: the diagnosis is that of the same program on simulated
// ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "backends/launch/ports.hpp"
#include "tests/programs/hangs/hangs_fixture.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::hangs {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
class DiagnosedTest : public HangsTest {};
INSTANTIATE_TEST_SUITE_P(Mistakes, DiagnosedTest,
                         ::testing::Values("dtype", "operation", "reduction", "shape", "shape_of_equal_size", "strides",
                                           "root", "gathered_shape", "scattered_dtype", "extra_barrier", "missing_sum",
                                           "splits", "widths", "message_size", "message_dtype", "library_reduction",
                                           "library_scale", "library_gather", "library_pad", "checkpoint_name",
                                           "early_return", "loop_lengths", "barrier_of_main", "main_process_reduces",
                                           "group_order", "cycle_of_receives", "receive_without_send",
                                           "receive_and_barrier"),
                         [](const auto& info) { return info.param; });
#ifndef ACCEL_SANITIZED  // a rank that leaves its program by exit leaves its objects
INSTANTIATE_TEST_SUITE_P(Exits, DiagnosedTest, ::testing::Values("quick_exit"));
#endif

// Word for word, and before a rank has printed a wrong number.
TEST_P(DiagnosedTest, RealRanksGetTheDiagnosisOfSimulatedOnes) {
  const auto simulated = run_on("sim", GetParam()), real = run_on("gloo", GetParam());
  EXPECT_EQ(simulated.result.exit_code, 3) << simulated.result.error;
  EXPECT_EQ(real.result.exit_code, 3) << real.result.error;
  EXPECT_EQ(real.diagnosis, simulated.diagnosis) << real.result.error;
  EXPECT_EQ(real.result.output, "");
  EXPECT_THAT(real.result.error, HasSubstr(real.diagnosis["text"].get<std::string>()));
  EXPECT_THAT(real.result.error, HasSubstr("sim-run --ranks 4 -- " + bin("hanging_program") + " " + GetParam()));
}

class FailedTest : public HangsTest {};
INSTANTIATE_TEST_SUITE_P(Mistakes, FailedTest, ::testing::Values("exception", "segmentation_fault", "exit_code"),
                         [](const auto& info) { return info.param; });

// The rank that failed is named last, and what the others saw of it takes one line.
TEST_P(FailedTest, TheCauseIsReportedLastAndTheConsequencesInOneLine) {
  const auto real = run_on("gloo", GetParam());
  EXPECT_EQ(real.result.exit_code, 1);
  EXPECT_EQ(real.diagnosis["kind"], "rank_failure");
  EXPECT_EQ(real.diagnosis["ranks"], Json::array({3}));
  EXPECT_THAT(real.result.error, HasSubstr("accel launch: rank 3 "));
  EXPECT_TRUE(real.result.error.ends_with("\nranks 0-2: released from waiting by this failure\n")) << real.result.error;
  EXPECT_THAT(real.result.error, Not(HasSubstr("[rank 0]")));
}

class SuspectedTest : public HangsTest {};
INSTANTIATE_TEST_SUITE_P(Mistakes, SuspectedTest, ::testing::Values("stopped", "endless_loop", "sleeping", "reading"),
                         [](const auto& info) { return info.param; });

TEST_P(SuspectedTest, ARankThatMayOnlyBeSlowIsNamedAndStopsTheJobIfAsked) {
  const auto real = run_on("gloo", GetParam(), {"--hang-seconds", "1", "--on-hang", "stop"});
  EXPECT_EQ(real.result.exit_code, 3);
  EXPECT_EQ(real.diagnosis["kind"], "hang");
  EXPECT_EQ(real.diagnosis["ranks"], Json::array({3}));
  EXPECT_THAT(real.diagnosis["text"].get<std::string>(),
              AllOf(HasSubstr("ranks 0-2 have waited for "), HasSubstr("rank 3 is running, after all_reduce #1")));
}

// The last line of the report is a command for a shell.
TEST_F(HangsTest, ASuspectedHangIsPlannedForSimulatedRanks) {
  const auto real = run_on("gloo", "sleeping", {"--hang-seconds", "1", "--on-hang", "stop"});
  const std::string before = "the same on simulated ranks: ";
  const auto at = real.result.error.rfind(before);
  ASSERT_NE(at, std::string::npos) << real.result.error;
  const auto script = "cd $0; export PATH=$1:$PATH; " + real.result.error.substr(at + before.size());
  const auto again =
      run_command({"bash", "-c", script, folder_.path(""), std::filesystem::path(bin("sim-run")).parent_path()});
  EXPECT_EQ(again.exit_code, 3) << again.error;
  EXPECT_THAT(again.error, AllOf(HasSubstr("3 of 4 ranks arrived (ranks 0-2)"),
                                 HasSubstr("missing: rank 3 is running, after all_reduce #1 of group world")));
}

TEST_F(HangsTest, ASlowRankIsReportedAndTheJobLives) {
  const auto real = run_on("gloo", "slow", {"--hang-seconds", "1"});
  EXPECT_EQ(real.result.exit_code, 0);
  EXPECT_EQ(real.diagnosis["kind"], "none");
  EXPECT_THAT(real.result.error, AllOf(HasSubstr("warning: ranks 0-2 have waited for "), HasSubstr("; it sleeps")));
}

// Four ranks with torchrun's variables and without accel launch.
CommandResult run_without_launcher(const std::string& mistake, std::map<std::string, std::string> variables = {}) {
  const launcher::PortClaim port(0);
  variables.merge(std::map<std::string, std::string>{{"WORLD_SIZE", "4"},
                                                     {"LOCAL_WORLD_SIZE", "4"},
                                                     {"MASTER_ADDR", "127.0.0.1"},
                                                     {"MASTER_PORT", std::to_string(port.port())},
                                                     {"ACCELERATE_USE_CPU", "true"}});
  return run_command({"bash", "-c", script_of_ranks(0, 4), bin("hanging_program"), mistake},
                     {.environment = variables});
}

class UnlaunchedTest : public HangsTest {};
INSTANTIATE_TEST_SUITE_P(Mistakes, UnlaunchedTest,
                         ::testing::Values("dtype", "library_pad", "missing_sum", "loop_lengths", "early_return",
                                           "barrier_of_main", "group_order", "cycle_of_receives",
                                           "receive_and_barrier"),
                         [](const auto& info) { return info.param; });

// The ranks watch themselves. One of them prints what the simulator says.
TEST_P(UnlaunchedTest, RanksOfAnotherLauncherGetTheDiagnosisOfSimulatedOnes) {
  const auto simulated = run_on("sim", GetParam());
  const auto run = run_without_launcher(GetParam());
  EXPECT_THAT(run.output, HasSubstr("ended 3\n"));
  EXPECT_EQ(count_of(simulated.diagnosis["text"], run.error), 1) << run.error;
  EXPECT_EQ(count_of("error: ", run.error), 1) << run.error;
}

TEST_F(HangsTest, RanksOfMpirunToo) {
  for (const std::string mistake : {"reduction", "loop_lengths", "early_return"}) {
    const auto simulated = run_on("sim", mistake);
    const auto run = run_command({"mpirun", "-np", "4", "--oversubscribe", bin("hanging_program"), mistake},
                                 {.environment = {{"OMPI_ALLOW_RUN_AS_ROOT", "1"},
                                                  {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
                                                  {"ACCELERATE_USE_CPU", "true"},
                                                  {"MASTER_PORT", std::to_string(launcher::PortClaim(0).port())}}});
    EXPECT_EQ(run.exit_code, 3) << run.error;
    EXPECT_EQ(count_of(simulated.diagnosis["text"], run.error), 1) << run.error;
  }
}

TEST_F(HangsTest, RanksOfAnotherLauncherSayWhoHasFailed) {
  const auto run = run_without_launcher("exception");
  EXPECT_EQ(run.output, "ended 1\nended 1\nended 1\nended 1\n");
  EXPECT_THAT(run.error,
              AllOf(HasSubstr("error: the disk of rank 3 is full"),
                    HasSubstr("error: rank 0: released from waiting: rank 3 has failed: the disk of rank 3 is full")));
}

TEST_F(HangsTest, RanksOfAnotherLauncherSayWhoMayOnlyBeSlow) {
  const auto slow = run_without_launcher("slow", {{"ACCEL_HANG_SECONDS", "1"}});
  EXPECT_EQ(slow.output, "ended 0\nended 0\nended 0\nended 0\n") << slow.error;
  EXPECT_THAT(slow.error, AllOf(HasSubstr("ranks 0-2 have waited for "), HasSubstr("; it sleeps")));
  const auto stopped = run_without_launcher("sleeping", {{"ACCEL_HANG_SECONDS", "1"}, {"ACCEL_ON_HANG", "stop"}});
  EXPECT_EQ(stopped.output, "ended 3\nended 3\nended 3\nended 3\n") << stopped.error;
}

// Random ones, from fresh seeds; some have a rank that is slow for longer than --hang-seconds.
TEST_F(HangsTest, ProgramsWithoutAMistakeAreNotAccused) {
  const auto first_seed = std::to_string(std::random_device()() % 1'000'000'000);
  const auto run = run_command({bin("accel"), "launch", "--num_processes", "4", "--cpu", "--hang-seconds", "1",
                                bin("clean_program"), first_seed, std::to_string(num_cases(25))});
  EXPECT_EQ(run.exit_code, 0) << "clean_program " << first_seed << "\n" << run.error;
  EXPECT_THAT(run.error, Not(HasSubstr("hang:"))) << "clean_program " << first_seed;
}

// Every call of every rank, as on simulated ranks.
TEST_F(HangsTest, TheTimelineOfARealJobIsComparedWithAPredictedOne) {
  const auto real_file = folder_.path("real.pftrace"), sim_file = folder_.path("sim.json");
  EXPECT_EQ(run_on("gloo", "none", {"--timeline", real_file}).result.exit_code, 0);
  EXPECT_EQ(run_on("sim", "none", {"--timeline", sim_file}).result.exit_code, 0);
  const auto compared = run_command({bin("sim-run"), "compare", "--timelines", real_file, sim_file});
  EXPECT_EQ(compared.exit_code, 0) << compared.output << compared.error;
  EXPECT_THAT(compared.output, AllOf(HasSubstr("all_reduce, mean wait"), HasSubstr("equal: 4 ranks, 12 calls")));
  EXPECT_EQ(run_on("sim", "loop_lengths", {"--timeline", sim_file}).result.exit_code, 3);
  const auto other = run_command({bin("sim-run"), "compare", "--timelines", real_file, sim_file});
  EXPECT_EQ(other.exit_code, 1);
  EXPECT_THAT(other.output, HasSubstr("different: rank 0, call 3: a makes no call, b makes all_reduce #3"));
}

// From another terminal, and by a signal, without an end of the job.
TEST_F(HangsTest, ARunningJobSaysWhereItsRanksAre) {
  const auto script =
      "$0 launch --num_processes 4 --cpu $1 sleeping & job=$!; "
      "until $0 where $job 2>/dev/null | grep -q waits; do sleep 0.1; done; "
      "$0 where $job; kill -USR1 $job; sleep 0.5; kill -0 $job && echo lives; kill $job; wait $job";
  const auto run = run_command({"bash", "-c", script, bin("accel"), bin("hanging_program")});
  for (const auto& text : {run.output, run.error}) {
    EXPECT_THAT(text, HasSubstr("ranks 0-2: waits in all_reduce #2 of group world (tests/programs/hangs/"));
    EXPECT_THAT(text, HasSubstr("rank 3: is running, after all_reduce #1 of group world"));
    EXPECT_THAT(text, ContainsRegex("; it sleeps\nslowest: rank [0-3] came last to [12] of the last 2 collectives of "
                                    "group world, [0-9.e-]+ ms after the first rank\n"));
  }
  EXPECT_THAT(run.output, HasSubstr("\nlives\n"));
}

TEST_F(HangsTest, AProcessWithoutARecordIsAnError) {
  const auto run = run_command({bin("accel"), "where", "1"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.error, HasSubstr("process 1: "));
}

}  // namespace
}  // namespace accel::testing::hangs
