// Tests of how the launcher divides the CPUs of a machine among its ranks. Neighbouring cores share caches, so each
// rank gets a run of neighbours.
#include "backends/launch/cpu_plan.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <numeric>

#include "tests/support/clean_environment.hpp"

namespace accel::launcher {
namespace {

using ::testing::ElementsAre;

TEST(CpuPlanTest, EachRankGetsNeighbouringCores) {
  const std::vector<Core> cores{{0, 4}, {1, 5}, {2, 6}, {3, 7}};
  EXPECT_THAT(plan_cpus(cores, 2), ElementsAre(ElementsAre(0, 4, 1, 5), ElementsAre(2, 6, 3, 7)));
}

// Two ranks on the hyperthreads of one core would slow each other down while another rank has a core for itself.
TEST(CpuPlanTest, RanksShareACoreOnlyIfThereAreMoreRanksThanCores) {
  const std::vector<Core> cores{{0, 3}, {1, 4}, {2, 5}};
  EXPECT_THAT(plan_cpus(cores, 2), ElementsAre(ElementsAre(0, 3), ElementsAre(1, 4, 2, 5)));
  EXPECT_THAT(plan_cpus({{0, 2}, {1, 3}}, 4),
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(1), ElementsAre(3)));
  EXPECT_THAT(plan_cpus({{0}, {1}}, 4), ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1), ElementsAre(1)));
}

// For any machine and any number of ranks.
RC_GTEST_PROP(CpuPlanLaws, EveryCpuIsUsedAndSharesDifferByOneCoreAtMost, ()) {
  const int threads = *rc::gen::inRange(1, 4);
  std::vector<Core> cores(*rc::gen::inRange<std::size_t>(1, 64), Core(threads));
  std::vector<int> cpus;
  for (auto& core : cores) {
    std::iota(core.begin(), core.end(), 3 + static_cast<int>(cpus.size()));
    cpus.insert(cpus.end(), core.begin(), core.end());
  }
  const int ranks = *rc::gen::inRange(1, 70);
  std::vector<int> used;
  std::size_t least = cpus.size(), most = 0;
  const auto plan = plan_cpus(cores, ranks);
  RC_ASSERT(static_cast<int>(plan.size()) == ranks);
  for (const auto& own : plan) {
    least = std::min(least, own.size());
    most = std::max(most, own.size());
    used.insert(used.end(), own.begin(), own.end());
  }
  RC_ASSERT(least >= 1U);
  RC_ASSERT(most - least <= (static_cast<std::size_t>(ranks) <= cores.size() ? static_cast<std::size_t>(threads) : 1U));
  if (cpus.size() >= static_cast<std::size_t>(ranks)) RC_ASSERT(used == cpus);
}

// Two packages of two cores. The kernel numbers first threads of all cores, then second ones.
TEST(CpuPlanTest, CpusAreGroupedByCoreInTheOrderOfTheTopology) {
  testing::CleanEnvironment environment{{"HWLOC_"}};
  environment.set({{"HWLOC_SYNTHETIC", "pack:2 core:2 pu:2(indexes=0,4,2,6,1,5,3,7)"}});
  EXPECT_THAT(cores_of({0, 1, 2, 3, 4, 5, 6, 7}),
              ElementsAre(ElementsAre(0, 4), ElementsAre(2, 6), ElementsAre(1, 5), ElementsAre(3, 7)));
  EXPECT_THAT(cores_of({1, 4, 5, 9}), ElementsAre(ElementsAre(4), ElementsAre(1, 5), ElementsAre(9)))
      << "a restricted process, and a CPU that the topology lacks";
}

TEST(CpuPlanTest, ThisProcessHasAtLeastOneCore) { EXPECT_FALSE(cores_of(cpus_of_this_process()).empty()); }

}  // namespace
}  // namespace accel::launcher
