// Tests of which of several failed processes is named as the cause.
#include "backends/launch/rank_processes.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

namespace accel::launcher {
namespace {

// Of three ranks, `killed` is killed by a signal, and the others end with exit code 1. All end before the first check.
RankFailure failure_of(int killed) {
  RankProcessesOptions options{.command = {"/bin/sh", "-c", R"(test "$RANK" = "$KILLED" && kill -9 $$; exit 1)"},
                               .prefix = "",
                               .forwards_output = false};
  for (int rank = 0; rank < 3; ++rank) {
    options.ranks.push_back(
        {.rank = rank, .environment = {{"RANK", std::to_string(rank)}, {"KILLED", std::to_string(killed)}}});
  }
  RankProcesses processes(options);
  do {
    usleep(300'000);
    processes.advance();
  } while (!processes.have_ended());
  return processes.failure().value();
}

// The others fail because their peer disappeared.
TEST(RankProcessesTest, ARankKilledByASignalIsTheCause) {
  for (int killed = 0; killed < 3; ++killed) {
    const auto failure = failure_of(killed);
    EXPECT_EQ(failure.rank, killed);
    EXPECT_EQ(failure.exit_code, 128 + SIGKILL);
  }
}

TEST(RankProcessesTest, WithoutASignalTheFirstRankIsTheCause) { EXPECT_EQ(failure_of(-1).rank, 0); }

}  // namespace
}  // namespace accel::launcher
