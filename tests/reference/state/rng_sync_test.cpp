// Tests of set_seed and of synchronising generators across ranks. One number drawn after the call shows the state
// of a generator: equal numbers mean equal states.
#include "reference/state/rng_sync.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

using ::testing::Each;
using ::testing::ElementsAre;

namespace accel {
namespace {

using accel::testing::Backend;
using accel::testing::collect_ranks;

TEST(SetSeedTest, AllRanksDrawTheSameNumbers) {
  const auto drawn = collect_ranks(Backend::kSim, 4, [](RankContext&) {
    set_seed(42);
    return draw_int64(default_generator());
  });
  EXPECT_THAT(drawn, Each(draw_int64(make_generator(42))));
}

TEST(SetSeedTest, ADeviceSpecificSeedAddsTheRank) {
  const auto seeds = collect_ranks(Backend::kSim, 4, [](RankContext& rank) {
    set_seed(42, {.device_specific = true});
    return rank.generator.current_seed();
  });
  EXPECT_THAT(seeds, ElementsAre(42, 43, 44, 45));
}

TEST(SetSeedTest, DeterministicAlgorithmsAreRequiredOnRequest) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  set_seed(42);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
  set_seed(42, {.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
}

TEST(SetSeedTest, OutsideARankItIsAStateError) { EXPECT_THROW(set_seed(42), StateError); }

// The ranks start with different seeds and have drawn different numbers; afterwards they must all agree with rank
// 0.
TEST(RngSyncTest, AllRanksTakeTheStateOfRankZero) {
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    const auto drawn = collect_ranks(backend, 3, [](RankContext& rank) {
      set_seed(100, {.device_specific = true});
      for (int draw = 0; draw < rank.rank; ++draw) draw_int64(default_generator());
      synchronize_rng_state("torch");
      return draw_int64(default_generator());
    });
    EXPECT_THAT(drawn, Each(draw_int64(make_generator(100)))) << name_of(backend);
  }
}

TEST(RngSyncTest, AGeneratorIsSynchronisedWithoutTheDefaultOne) {
  const auto drawn = collect_ranks(Backend::kSim, 3, [](RankContext& rank) {
    set_seed(100, {.device_specific = true});
    const auto generator = make_generator(7 + rank.rank);
    synchronize_rng_states({"generator"}, generator);
    return std::pair(draw_int64(generator), default_generator().current_seed());
  });
  const auto expected = draw_int64(make_generator(7));
  EXPECT_THAT(drawn, ElementsAre(std::pair(expected, 100U), std::pair(expected, 101U), std::pair(expected, 102U)));
}

TEST(RngSyncTest, UnknownTypesAndMissingGeneratorsAreArgumentErrors) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  EXPECT_THROW(synchronize_rng_state("numpy"), ArgumentError);
  EXPECT_THROW(synchronize_rng_state("generator"), ArgumentError);
  EXPECT_THROW(synchronize_rng_state("cuda"), ArgumentError);
  EXPECT_THROW(synchronize_rng_states({"generator"}), ArgumentError);
}

}  // namespace
}  // namespace accel
