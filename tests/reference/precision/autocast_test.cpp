// Tests of autocast, above all that simulated ranks do not disturb each other. LibTorch keeps one cache of casts
// for the process, while the ranks are threads of one process: the gradient shows whether a rank lost its cached
// casts.
#include "reference/precision/autocast.hpp"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>

#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using accel::testing::Backend;
using accel::testing::collect_ranks;

bool enabled() { return at::autocast::is_autocast_enabled(at::kCPU); }
bool cache_enabled() { return at::autocast::is_autocast_cache_enabled(); }
at::ScalarType dtype() { return at::autocast::get_autocast_dtype(at::kCPU); }

// The gradient of the weight after three uses under autocast. `between` runs after each use, while the weight's
// cast is in the cache. torch::linear is used, as in Python's Linear: LibTorch's functional::linear multiplies by a
// transposed view, which is not cached.
at::Tensor gradient_of(
    int rank, bool cache, const std::function<void()>& between = [] {}) {
  const auto generator = make_generator(rank);
  const auto weight = torch::randn({16, 16}, generator).requires_grad_();
  auto hidden = torch::randn({8, 16}, generator);
  {
    const Autocast scope({.cache_enabled = cache});
    for (int use = 0; use < 3; ++use) {
      hidden = torch::tanh(torch::linear(hidden, weight));
      between();
    }
  }
  hidden.to(at::kFloat).square().sum().backward();
  return weight.grad();
}

// Even ranks are inside their scopes whenever odd ranks end theirs. The end of a scope clears the cache; with one
// shared cache, it would be cleared for all ranks.
TEST(AutocastTest, EveryRanksGradientEqualsThatOfARunAlone) {
  const auto gradients = collect_ranks(Backend::kSim, 8, [](RankContext& rank) {
    const auto meet = [&] { rank.world.barrier(); };
    if (rank.rank % 2 == 0) {
      return gradient_of(rank.rank, /*cache=*/true, [&] {
        meet();
        meet();
      });
    }
    at::Tensor gradient;
    for (int use = 0; use < 3; ++use) {
      meet();
      gradient = gradient_of(rank.rank, /*cache=*/true);
      meet();
    }
    return gradient;
  });
  for (int rank = 0; rank < 8; ++rank) EXPECT_TRUE(gradients[rank].equal(gradient_of(rank, /*cache=*/true))) << rank;
}

// Scopes begin and end at arbitrary points of the other ranks' scopes, some of them without a cache.
TEST(AutocastTest, AutocastOnOneRankNeverChangesTheGradientOfAnother) {
  constexpr int kRuns = 100, kRanks = 8;
  const auto uses_cache = [](int rank) { return rank % 4 != 3; };
  const auto gradients = collect_ranks(Backend::kSim, kRanks, [&](RankContext& rank) {
    std::vector<at::Tensor> of_runs;
    for (int run = 0; run < kRuns; ++run) {
      rank.world.barrier();
      if (rank.rank % 3 == run % 3) gradient_of(run, /*cache=*/run % 2 == 0);  // this rank comes later than others
      of_runs.push_back(gradient_of(rank.rank, uses_cache(rank.rank)));
    }
    return of_runs;
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    const auto alone = gradient_of(rank, uses_cache(rank));
    for (int run = 0; run < kRuns; ++run)
      EXPECT_TRUE(gradients[rank][run].equal(alone)) << "rank " << rank << ", run " << run;
  }
}

// A precondition of the tests above. A cached cast sums the gradients of its uses in bfloat16, so it makes a
// difference to the gradient whether the cache was cleared.
TEST(AutocastTest, TheCacheShowsInTheGradient) {
  EXPECT_FALSE(gradient_of(0, /*cache=*/true).equal(gradient_of(0, /*cache=*/false)));
}

TEST(AutocastTest, EligibleOperationsRunInTheLowerPrecision) {
  const auto weight = torch::ones({2, 2}), input = torch::ones({1, 2});
  {
    const Autocast scope({});
    EXPECT_EQ(torch::linear(input, weight).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(torch::linear(input, weight).scalar_type(), at::kFloat);
}

// A cached cast that outlives its scope would train with the weights of an earlier step.
TEST(AutocastTest, AWeightChangedBetweenScopesIsCastAgain) {
  const auto weight = torch::ones({1, 1}).requires_grad_(), input = torch::ones({1, 1});
  const auto output = [&] {
    const Autocast scope({});
    return torch::linear(input, weight).to(at::kFloat).item<float>();
  };
  EXPECT_EQ(output(), 1);
  weight.data().fill_(2);
  EXPECT_EQ(output(), 2);
}

// The program may itself have set autocast with LibTorch's functions before.
TEST(AutocastTest, AScopeRestoresWhatItFound) {
  const bool enabled_before = enabled(), cache_before = cache_enabled();
  const auto dtype_before = dtype();
  {
    const Autocast scope({.dtype = at::kHalf, .cache_enabled = false});
    EXPECT_TRUE(enabled());
    EXPECT_FALSE(cache_enabled());
    EXPECT_EQ(dtype(), at::kHalf);
  }
  EXPECT_EQ(enabled(), enabled_before);
  EXPECT_EQ(cache_enabled(), cache_before);
  EXPECT_EQ(dtype(), dtype_before);
}

TEST(AutocastTest, ADisabledScopeInsideAnotherRunsInFullPrecision) {
  const auto weight = torch::ones({2, 2}), input = torch::ones({1, 2});
  const Autocast outer({});
  {
    const Autocast inner({.enabled = false});
    EXPECT_EQ(torch::linear(input, weight).scalar_type(), at::kFloat);
  }
  EXPECT_EQ(torch::linear(input, weight).scalar_type(), at::kBFloat16);
}

TEST(AutocastTest, AnExceptionEndsTheScope) {
  const bool before = enabled();
  try {
    const Autocast scope({});
    throw std::runtime_error("stop");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(enabled(), before);
  }
}

TEST(ConvertToFp32Test, OnlyHalfPrecisionTensorsAreConverted) {
  const std::vector<at::Tensor> tree = {torch::ones({1}, at::kBFloat16), torch::ones({1}, at::kHalf),
                                        torch::ones({1}, at::kDouble), torch::ones({1}, at::kLong), at::Tensor()};
  const auto converted = convert_tree_to_fp32(tree);
  EXPECT_EQ(converted[0].scalar_type(), at::kFloat);
  EXPECT_EQ(converted[1].scalar_type(), at::kFloat);
  EXPECT_TRUE(converted[2].is_same(tree[2]));
  EXPECT_TRUE(converted[3].is_same(tree[3]));
  EXPECT_FALSE(converted[4].defined());
}

}  // namespace
}  // namespace accel
