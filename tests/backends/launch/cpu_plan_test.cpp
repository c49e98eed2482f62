// Tests of how the launcher divides the CPUs of a machine among its ranks. Neighbouring CPUs share caches, so each
// rank gets a run of neighbours.
#include "backends/launch/cpu_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

namespace accel::launcher {
namespace {

using ::testing::ElementsAre;

// With more ranks than CPUs, several ranks share one.
TEST(CpuPlanTest, EachRankGetsNeighbouringCpus) {
  EXPECT_THAT(plan_cpus({0, 1, 2, 3, 8, 9}, 2), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 8, 9)));
  EXPECT_THAT(plan_cpus({0, 1}, 4), ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1), ElementsAre(1)));
}

// For any number of CPUs and of ranks.
RC_GTEST_PROP(CpuPlanLaws, EveryCpuIsUsedAndSharesDifferByOneAtMost, ()) {
  std::vector<int> cpus(*rc::gen::inRange<std::size_t>(1, 64));
  std::iota(cpus.begin(), cpus.end(), 3);
  const int ranks = *rc::gen::inRange(1, 40);
  std::vector<int> used;
  std::size_t least = cpus.size(), most = 0;
  const auto plan = plan_cpus(cpus, ranks);
  RC_ASSERT(static_cast<int>(plan.size()) == ranks);
  for (const auto& own : plan) {
    least = std::min(least, own.size());
    most = std::max(most, own.size());
    used.insert(used.end(), own.begin(), own.end());
  }
  RC_ASSERT(least >= 1U);
  RC_ASSERT(most - least <= 1U);
  if (cpus.size() >= static_cast<std::size_t>(ranks)) RC_ASSERT(used == cpus);
}

// As in /sys/devices/system/node/node0/cpulist.
TEST(CpuPlanTest, ListsInTheFormOfTheKernelAreParsed) {
  EXPECT_THAT(parse_cpu_list("0-3,8,10-11\n"), ElementsAre(0, 1, 2, 3, 8, 10, 11));
  EXPECT_THAT(parse_cpu_list(""), ElementsAre());
}

TEST(CpuPlanTest, ThisProcessHasAtLeastOneCpu) { EXPECT_FALSE(cpus_of_this_process().empty()); }

}  // namespace
}  // namespace accel::launcher
