// What every rank observes of faults of the store and of files, from within a training that saves.
#include <gmock/gmock.h>

#include "reference/files/files.hpp"
#include "tests/sim/faults/expected_effects.hpp"
#include "tests/support/temporary_folder.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace sim;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// The store is used once, when ranks connect.
TEST(StorageEffectsTest, SlowStoreDelaysTheStartAndChangesNoBit) {
  const auto run = run_with({{.kind = FaultKind::kStoreSlow, .seconds = 0.05}});
  expect_outlived(run, "store_slow");
  EXPECT_NEAR(lost_seconds(run), 0.05, kRounding);
}

// The ranks find each other through the store, so no rank can begin.
TEST(StorageEffectsTest, AnUnavailableStoreIsAnErrorOfEveryRank) {
  const auto run = run_with({{.kind = FaultKind::kStoreSlow, .away = true}});
  EXPECT_THAT(
      run.errors,
      Each("InjectedFault: The client socket has timed out after 1800000ms while trying to connect to the store"));
  EXPECT_EQ(run.updates(), everywhere(0));
  expect_fault(run, "store_slow", {});
}

class FileFaultEffectsTest : public ::testing::Test {
 protected:
  /// Every rank saves its number of updates after each update.
  FaultyRun run(const Fault& fault) {
    return run_with({fault}, {.places = {.after_update = [this](RankContext& rank, int step) {
                                write_atomically(*rank.files, file_of(rank.rank), std::to_string(step));
                                ++num_saved_[rank.rank];
                              }}});
  }
  [[nodiscard]] std::string file_of(int rank) const { return folder_.path("rank" + std::to_string(rank)); }
  [[nodiscard]] std::string saved(int rank) const { return PosixFiles().read(file_of(rank)); }

  TemporaryFolder folder_;
  std::vector<int> num_saved_ = std::vector<int>(kFaultyRanks);
};

// Bytes 0: the process dies before anything of the new file reaches the disk.
TEST_F(FileFaultEffectsTest, TornWriteEndsItsRankAndKeepsThePreviousCheckpoint) {
  PosixFiles disk;
  write_atomically(disk, file_of(kRank), "before");
  const auto run = this->run({.kind = FaultKind::kTornWrite, .rank = kRank, .bytes = 0});
  EXPECT_THAT(run.errors[kRank], AllOf(StartsWith("ProcessDied: torn_write on rank 2"),
                                       HasSubstr("rank2.tmp; 0 bytes of it reached the disk")));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(run.errors[rank], kClosedBy2);
  EXPECT_EQ(run.updates(), everywhere(1));
  EXPECT_EQ(saved(kRank), "before");
  EXPECT_EQ(saved(0), "0");
  EXPECT_THAT(folder_.files(), ElementsAre("rank0", "rank1", "rank2", "rank2.tmp", "rank3"))
      << "a process that died cannot remove its temporary file";
  expect_fault(run, "torn_write", {kRank});
}

// The disk is full in the fourth save; the third must remain.
TEST_F(FileFaultEffectsTest, FullDiskIsAnErrorThatKeepsThePreviousCheckpoint) {
  const auto run = this->run({.kind = FaultKind::kDiskFull, .rank = kRank, .after_bytes = 3});  // one byte per save
  EXPECT_THAT(run.errors[kRank],
              AllOf(StartsWith("FileError: "), HasSubstr("rank2"), HasSubstr("No space left on device")));
  for (const int rank : {0, 1, 3}) EXPECT_EQ(run.errors[rank], kClosedBy2);
  EXPECT_EQ(run.updates(), everywhere(4));
  EXPECT_EQ(saved(kRank), "2");
  EXPECT_EQ(saved(0), "3");
  EXPECT_THAT(folder_.files(), ElementsAre("rank0", "rank1", "rank2", "rank3")) << "no temporary file is left";
  expect_fault(run, "disk_full", {kRank});
}

// A fault of files cannot occur in a run that writes none.
TEST_F(FileFaultEffectsTest, RunWithoutSavesIsUnaffected) {
  for (const auto& fault : {Fault{.kind = FaultKind::kTornWrite, .rank = kRank},
                            Fault{.kind = FaultKind::kDiskFull, .rank = kRank, .after_bytes = 0}}) {
    const auto run = run_with({fault});
    EXPECT_THAT(run.errors, Each(""));
    EXPECT_THAT(run.report.strikes, IsEmpty());
  }
}

}  // namespace
}  // namespace accel::testing
