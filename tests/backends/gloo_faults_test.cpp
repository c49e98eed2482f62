// What ranks see when one of them fails: four Gloo processes over TCP and over shared memory, compared with the
// simulator. Real ranks learn of a failure in no fixed order, so each may see one of several errors; the simulator
// always shows the same one of them. This comparison is the reason to trust what a simulated failure shows.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "backends/launch/local_launch.hpp"
#include "sim/backend/simulate.hpp"
#include "tests/programs/support/run_command.hpp"
#include "tests/sim/faults/faulty_runs.hpp"
#include "tests/support/mismatched_calls.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;

constexpr int kRanks = kFaultyRanks;
constexpr int kRank = 2;
constexpr int kStep = 5;
constexpr When kAtStep{When::Unit::kStep, kStep};
constexpr int kSecondsUntilTimeout = 3;
constexpr int kSecondsEnough = 60;  // longer than any of the tests waits
const std::vector<int> kSurvivors{0, 1, 3};

constexpr const char* kClosed = "Connection closed by peer";
constexpr const char* kReset = "Connection reset by peer";
constexpr const char* kTimedOut = "Timed out waiting";
constexpr const char* kPairClosed = "Application timeout caused pair closure";

/// The part of an error that says what happened, without ranks, line numbers and addresses.
std::string stem_of(const std::string& error) {
  for (const auto* stem : {kClosed, kReset, kTimedOut, kPairClosed}) {
    if (error.find(stem) != std::string::npos) return stem;
  }
  return error;
}

// What each rank saw, in the same form for Gloo and for the simulator.
struct SeenByRank {
  std::vector<std::string> stems;  // of errors; "": none, "gone": no report
  std::vector<int> updates;
  std::vector<std::vector<float>> sums;
};

// Starts four processes and collects what each of them wrote.
SeenByRank on_gloo(const std::string& transport, const std::string& fault, int timeout_seconds) {
  const TemporaryFolder folder;
  const auto result =
      launcher::launch_local({.command = {bin("failing_rank"), fault, folder.path()},
                              .num_processes = kRanks,
                              .environment = {{"ACCEL_TIMEOUT_SECONDS", std::to_string(timeout_seconds)},
                                              {"ACCEL_GLOO_TRANSPORT", transport},
                                              {"ACCEL_RECORD", "off"}}});  // what Gloo itself does
  EXPECT_EQ(result.exit_code, 0) << result.message;
  SeenByRank seen;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::ifstream in(folder.path("rank" + std::to_string(rank) + ".json"));
    const auto json = in ? nlohmann::json::parse(in)
                         : nlohmann::json{{"error", "gone"}, {"updates", 0}, {"sums", std::vector<float>()}};
    seen.stems.push_back(stem_of(json["error"]));
    seen.updates.push_back(json["updates"]);
    seen.sums.push_back(json["sums"]);
  }
  return seen;
}

SeenByRank on_simulator(const Fault& fault, std::chrono::milliseconds timeout = std::chrono::minutes(30)) {
  const auto run = run_with({fault}, {.timeout = timeout});
  SeenByRank seen{.updates = run.updates()};
  for (const auto& error : run.errors) seen.stems.push_back(stem_of(error));
  return seen;
}

/// Each survivor's error must match `stem`, over Gloo and in the simulator.
template <typename Stem>
void expect_survivors_see(const SeenByRank& gloo, const SeenByRank& simulated, const Stem& stem, int updates) {
  for (const int rank : kSurvivors) {
    EXPECT_THAT(gloo.stems[rank], stem) << "Gloo, rank " << rank;
    EXPECT_THAT(simulated.stems[rank], stem) << "simulator, rank " << rank;
    EXPECT_EQ(gloo.updates[rank], updates) << "Gloo, rank " << rank;
    EXPECT_EQ(simulated.updates[rank], updates) << "simulator, rank " << rank;
  }
}

const auto kPeerIsGone = AnyOf(kClosed, kReset);
const auto kLateOrGone = AnyOf(kTimedOut, kPairClosed, kClosed, kReset);

class GlooFaultsTest : public ::testing::TestWithParam<std::string> {};

INSTANTIATE_TEST_SUITE_P(Transports, GlooFaultsTest, ::testing::Values("tcp", "shm"),
                         [](const auto& info) { return info.param; });

// The process is gone, so the system closes its connections.
TEST_P(GlooFaultsTest, ExitBeforeACollectiveClosesTheOthersConnections) {
  const auto gloo = on_gloo(GetParam(), "exits_before_collective", kSecondsEnough);
  const auto simulated = on_simulator({.kind = FaultKind::kRankCrashBeforeCollective, .rank = kRank, .when = kAtStep});
  EXPECT_EQ(gloo.stems[kRank], "gone");
  expect_survivors_see(gloo, simulated, kPeerIsGone, kStep);
}

// The gradients were already exchanged, so the survivors still make this step.
TEST_P(GlooFaultsTest, ExitBeforeTheOptimizerStepLeavesTheOthersOneStepAhead) {
  const auto gloo = on_gloo(GetParam(), "exits_before_update", kSecondsEnough);
  const auto simulated =
      on_simulator({.kind = FaultKind::kRankCrashBeforeOptimizerStep, .rank = kRank, .when = kAtStep});
  EXPECT_EQ(gloo.stems[kRank], "gone");
  expect_survivors_see(gloo, simulated, kPeerIsGone, kStep + 1);
  EXPECT_EQ(simulated.updates[kRank], kStep);
}

// The exception leaves the backward pass and ends the program of rank 2.
TEST_P(GlooFaultsTest, ExceptionInAHookEndsItsRankAndClosesTheOthersConnections) {
  const auto gloo = on_gloo(GetParam(), "throws_in_hook", kSecondsEnough);
  const auto simulated = on_simulator({.kind = FaultKind::kHookException, .rank = kRank, .when = kAtStep});
  EXPECT_EQ(gloo.stems[kRank], "no ink");
  EXPECT_EQ(simulated.stems[kRank], "InjectedFault: injected exception in a backward hook");
  expect_survivors_see(gloo, simulated, kPeerIsGone, kStep);
}

// The first rank that times out closes its connections; ranks that see this first report a closed connection.
TEST_P(GlooFaultsTest, AHangTimesOutSomeRanksAndClosesTheConnectionsOfTheRest) {
  const auto gloo = on_gloo(GetParam(), "hangs", kSecondsUntilTimeout);
  const auto simulated = on_simulator({.kind = FaultKind::kRankHang, .rank = kRank, .when = kAtStep});
  expect_survivors_see(gloo, simulated, kLateOrGone, kStep);
  EXPECT_THAT(gloo.stems, Contains(kTimedOut));
  EXPECT_THAT(simulated.stems, Contains(kTimedOut));
}

// Unlike after a hang, the late rank continues, and must fail too instead of training alone.
TEST_P(GlooFaultsTest, PauseBeyondTheTimeoutIsATimeoutOfTheOthers) {
  const auto gloo = on_gloo(GetParam(), "pauses", kSecondsUntilTimeout);
  const auto simulated =
      on_simulator({.kind = FaultKind::kRankPause, .rank = kRank, .when = kAtStep, .seconds = kSecondsUntilTimeout + 1},
                   std::chrono::seconds(kSecondsUntilTimeout));
  expect_survivors_see(gloo, simulated, kLateOrGone, kStep);
  EXPECT_THAT(gloo.stems, Contains(kTimedOut));
  EXPECT_THAT(simulated.stems, Contains(kTimedOut));
  EXPECT_THAT(gloo.stems[kRank], kPeerIsGone);
  EXPECT_THAT(simulated.stems[kRank], kPeerIsGone);
}

// --- calls that differ between ranks
// ---------------------------------------------------------------------------------

/// The simulator must end every rank with a diagnosis that names rank 2 and its call.
void expect_named_by_the_simulator(const std::string& mismatch, const std::string& call) {
  const auto report = rehearse({.num_ranks = kRanks}, [&](RankContext& rank) { call_with_a_mismatch(rank, mismatch); });
  ASSERT_TRUE(report.diagnosis) << mismatch;
  EXPECT_EQ(report.diagnosis->kind, Diagnosis::Kind::kDesync);
  EXPECT_THAT(report.diagnosis->ranks, ElementsAre(kRank));
  EXPECT_EQ(report.diagnosis->sequence, 1u);
  EXPECT_THAT(report.diagnosis->text, ::testing::HasSubstr("rank 2: " + call));
  EXPECT_THAT(report.diagnosis->text, ::testing::HasSubstr("ranks 0-1, 3: all_reduce(sum, float32 [4])"));
}

// Gloo does not compare the calls of ranks. These tests show what a user would see there, and that the simulator
// names the mistake in the same program.
TEST_P(GlooFaultsTest, AnotherOperationHangsAllRanksOfGlooUntilTheTimeout) {
  const auto gloo = on_gloo(GetParam(), "wrong_op", kSecondsUntilTimeout);
  EXPECT_THAT(gloo.stems, Each(kLateOrGone));
  EXPECT_THAT(gloo.stems, Contains(kTimedOut));
  expect_named_by_the_simulator("wrong_op", "all_gather_into_tensor(float32 [4])");
}

// Rank 2 takes the maximum where the others add: no error, and wrong gradients.
TEST_P(GlooFaultsTest, AnotherReduceOperationGivesWrongNumbersOverGloo) {
  const auto gloo = on_gloo(GetParam(), "wrong_reduce_op", kSecondsEnough);
  EXPECT_THAT(gloo.stems, Each(""));
  EXPECT_THAT(gloo.sums, Each(ElementsAre(7, 7, 7, 7)));  // 10 would be right
  expect_named_by_the_simulator("wrong_reduce_op", "all_reduce(max, float32 [4])");
}

// Only the number of elements is sent, so the sum is right by chance.
TEST_P(GlooFaultsTest, AnotherShapeOfEqualSizePassesOverGloo) {
  const auto gloo = on_gloo(GetParam(), "wrong_shape", kSecondsEnough);
  EXPECT_THAT(gloo.stems, Each(""));
  EXPECT_THAT(gloo.sums, Each(ElementsAre(10, 10, 10, 10)));
  expect_named_by_the_simulator("wrong_shape", "all_reduce(sum, float32 [2, 2])");
}

// Over TCP, Gloo itself aborts the process in one of its threads.
TEST_P(GlooFaultsTest, AnotherSizeAbortsARankOverTcpAndIsAnErrorOverSharedMemory) {
  const auto gloo = on_gloo(GetParam(), "wrong_size", kSecondsEnough);
  const auto is_more_than_asked_for = ::testing::HasSubstr("op.preamble.length <= op.nbytes");
  if (GetParam() == "tcp") {
    EXPECT_THAT(gloo.stems, Contains("aborted"));
    EXPECT_THAT(gloo.stems, Each(AnyOf("aborted", kClosed, kReset)));
  } else {
    EXPECT_THAT(gloo.stems, Contains(is_more_than_asked_for));
    EXPECT_THAT(gloo.stems, Each(AnyOf(is_more_than_asked_for, kClosed)));
  }
  expect_named_by_the_simulator("wrong_size", "all_reduce(sum, float32 [4000])");
}

}  // namespace
}  // namespace accel::testing
