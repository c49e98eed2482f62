// Tests of the context of a rank. Simulated ranks are threads, so everything that belongs to a rank (its number,
// its generator, autocast, the number of threads) must be bound to the thread and restored at the end of a scope.
#include "reference/state/rank_context.hpp"

#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include <gmock/gmock.h>

#include <thread>

#include "reference/core/errors.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using accel::testing::Backend;
using accel::testing::collect_ranks;

TEST(RankContextTest, OutsideARankThereIsNone) { EXPECT_THROW(current_rank(), StateError); }

TEST(RankContextTest, AScopeMakesItsContextTheRankOfTheThread) {
  const auto outer = make_single_rank(), inner = make_single_rank();
  {
    const RankScope outer_scope(*outer);
    {
      const RankScope inner_scope(*inner);
      EXPECT_EQ(&current_rank(), inner.get());
      EXPECT_EQ(default_generator(), inner->generator);
    }
    EXPECT_EQ(&current_rank(), outer.get());
    EXPECT_EQ(default_generator(), outer->generator);
  }
  EXPECT_THROW(current_rank(), StateError);
}

// A thread that the program starts on its own is no rank: an error is better than another rank's generator.
TEST(RankContextTest, AnotherThreadIsNotTheRank) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  std::thread([] { EXPECT_THROW(current_rank(), StateError); }).join();
}

// The same seed as a plain LibTorch program, so that porting a program does not change its random numbers.
TEST(RankContextTest, ASingleRankStartsWithLibTorchsDefaultSeed) {
  const auto first = make_single_rank(), second = make_single_rank();
  EXPECT_EQ(first->rank, 0);
  EXPECT_EQ(first->world_size, 1);
  EXPECT_EQ(first->generator.current_seed(), c10::default_rng_seed_val);
  EXPECT_NE(first->generator, second->generator);
}

TEST(RankContextTest, ASingleRankHasGroupsOfItselfOnly) {
  const auto context = make_single_rank();
  EXPECT_NO_THROW(context->new_group({0}));
  EXPECT_THROW(context->new_group({0, 1}), ArgumentError);
}

// LibTorch keeps these settings for each thread, and new threads start with its defaults.
TEST(RankContextTest, AScopeSetsWhatThreadsDoNotInherit) {
  std::thread([] {
    const auto context = make_single_rank();
    context->num_threads = 1;
    c10::GradMode::set_enabled(false);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const RankScope scope(*context);
    EXPECT_TRUE(c10::GradMode::is_enabled());
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    EXPECT_EQ(at::get_num_threads(), 1);
  }).join();
}

TEST(RankContextTest, EveryRankOfARunFindsItself) {
  const auto ranks = collect_ranks(Backend::kSim, 4, [](RankContext& rank) {
    EXPECT_EQ(&current_rank(), &rank);
    EXPECT_EQ(rank.world_size, 4);
    return current_rank().rank;
  });
  EXPECT_THAT(ranks, ::testing::ElementsAre(0, 1, 2, 3));
}

}  // namespace
}  // namespace accel
