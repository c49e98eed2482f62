// What the tests of fault effects expect. All of them compare with one clean run of the same training.
#include "tests/sim/faults/expected_effects.hpp"

#include <gmock/gmock.h>

#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::testing {

using namespace sim;
using ::testing::Each;
using ::testing::SizeIs;
using ::testing::StartsWith;

// The number of calls that prepare() makes depends on the model, so it is measured once instead of being fixed
// here.
std::int64_t gradients_of(int step) {
  static const auto of_second =
      run_with({{.kind = FaultKind::kRankCrashBeforeCollective, .rank = 0, .when = When{When::Unit::kStep, 1}}})
          .report.diagnosis.value()
          .sequence;
  return static_cast<std::int64_t>(of_second) + step - 1;
}

std::vector<int> everywhere(int updates) { return std::vector<int>(kFaultyRanks, updates); }

// The run ended with a diagnosis of this fault on these ranks.
void expect_fault(const FaultyRun& run, const std::string& name, const std::vector<int>& ranks) {
  EXPECT_EQ(run.exit_code, programs::kDiagnosed);
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->kind, Diagnosis::Kind::kFault);
  EXPECT_EQ(run.report.diagnosis->fault, name);
  EXPECT_EQ(run.report.diagnosis->ranks, ranks);
  EXPECT_THAT(run.report.diagnosis->text, StartsWith("injected fault: " + name));
  EXPECT_THAT(run.report.strikes, SizeIs(1));
}

// The diagnosis names this call.
void expect_call(const FaultyRun& run, const std::string& op, std::int64_t sequence) {
  ASSERT_TRUE(run.report.diagnosis);
  EXPECT_EQ(run.report.diagnosis->op, op);
  EXPECT_EQ(run.report.diagnosis->group, "world");
  EXPECT_EQ(static_cast<std::int64_t>(run.report.diagnosis->sequence), sequence);
}

// Equal parameters on every rank are the proof: a fault of timing must not change a bit.
void expect_outlived(const FaultyRun& run, const std::string& name) {
  EXPECT_THAT(run.errors, Each(""));
  EXPECT_FALSE(run.report.error);
  EXPECT_EQ(run.exit_code, programs::kSuccess);
  ASSERT_THAT(run.report.strikes, SizeIs(1));
  EXPECT_EQ(run.report.strikes[0].name, name);
  EXPECT_EQ(run.updates(), everywhere(kTrainingSteps));
  for (int rank = 0; rank < kFaultyRanks; ++rank)
    EXPECT_EQ(run.ranks[rank].bytes(), clean_run().ranks[rank].bytes()) << "rank " << rank;
}

double lost_seconds(const FaultyRun& run) { return run.seconds() - clean_run().seconds(); }

}  // namespace accel::testing
