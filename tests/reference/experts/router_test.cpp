#include "reference/experts/router.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "reference/state/rank_context.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;

at::Tensor doubles(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  return at::randn(sizes, make_generator(seed), at::TensorOptions(at::kDouble));
}

TEST(RouterTest, OfEquallyProbableExpertsTheLowerIndicesAreChosen) {
  const auto logits = at::tensor({1.0, 3.0, 1.0, 3.0, 3.0, 0.0, 0.0, 0.0, 0.0, 0.0}).view({2, 5});
  const auto routing = route(logits, {.top_k = 4});
  EXPECT_TRUE(at::equal(routing.choices, at::tensor({1, 3, 4, 0, 0, 1, 2, 3}, at::kLong).view({2, 4})));
}

// topk returns other indices for ties of many experts, so this uses more than a vector register holds.
TEST(RouterTest, TiesOfManyExpertsAreChosenInOrder) {
  const auto routing = route(at::zeros({3, 100}), {.top_k = 5});
  EXPECT_TRUE(at::equal(routing.choices, at::arange(5).expand({3, 5})));
}

TEST(RouterTest, GatesAreProbabilitiesOfTheChosenExperts) {
  const auto logits = doubles({6, 5}, 1);
  const auto routing = route(logits, {.top_k = 2});
  const auto [gates, choices] = at::topk(at::softmax(logits, -1), 2);
  EXPECT_TRUE(at::equal(routing.gates, gates));
  EXPECT_TRUE(at::equal(routing.choices, choices));
  const auto normalized = route(logits, {.top_k = 2, .normalize_gates = true});
  EXPECT_TRUE(at::equal(normalized.gates, gates / gates.sum(-1, true)));
}

TEST(RouterTest, ProbabilitiesHaveFloatPrecisionUnlessLogitsHaveMore) {
  EXPECT_EQ(route(doubles({2, 3}, 1), {}).probabilities.scalar_type(), at::kDouble);
  EXPECT_EQ(route(doubles({2, 3}, 1).to(at::kBFloat16), {}).probabilities.scalar_type(), at::kFloat);
}

TEST(RouterTest, BalancedChoicesHaveALossOfOne) {
  const auto logits = at::eye(4, at::kDouble) * 3;
  const auto losses = routing_losses(logits, route(logits, {.top_k = 1}), Group());
  EXPECT_NEAR(losses.balance.item<double>(), 1, 1e-12);
  EXPECT_NEAR(losses.z.item<double>(), std::pow(std::log(std::exp(3.0) + 3), 2), 1e-12);
}

TEST(RouterTest, WithoutTokensLossesAreZero) {
  const auto logits = at::zeros({0, 4}, at::kDouble).requires_grad_();
  const auto losses = routing_losses(logits, route(logits, {.top_k = 2}), Group());
  EXPECT_EQ(losses.balance.item<double>(), 0);
  EXPECT_EQ(losses.z.item<double>(), 0);
}

// The mean of the ranks' gradients is that of one rank, also if ranks have different numbers of tokens and weight their
// losses differently.
TEST(RouterTest, LossesAndGradientsOfAnyLayoutAreThoseOfOneRank) {
  expect_property(40, [] {
    const int ranks = pick(2, 6);
    const auto experts = pick<std::int64_t>(1, 6),
               top_k = pick<std::int64_t>(1, std::min<std::int64_t>(3, experts + 1));
    std::vector<std::int64_t> tokens;
    for (int rank = 0; rank < ranks; ++rank) tokens.push_back(pick<std::int64_t>(0, 5));
    tokens[0] += 1;
    const auto all = doubles({std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0}), experts}, 3);
    const auto total = [&](const at::Tensor& logits, const Group& group) {
      const auto losses = routing_losses(logits, route(logits, {.top_k = top_k}), group);
      return losses.balance + losses.z * 0.5;
    };
    const auto whole = all.clone().requires_grad_();
    const auto expected = total(whole, Group());
    expected.backward();
    const auto parts = all.split_with_sizes(tokens), gradients = whole.grad().split_with_sizes(tokens);
    // The mean weight is 1, as of accelerate's loss_weighting "exact".
    const auto weight = [&](int rank) { return 2.0 * (rank + 1) / (ranks + 1); };
    run_ranks(Backend::kSim, ranks, [&](RankContext& rank) {
      const auto own = parts[static_cast<std::size_t>(rank.rank)].clone().requires_grad_();
      const auto loss = total(own, rank.world);
      RC_ASSERT(at::allclose(loss, expected, 1e-12, 1e-12));
      (loss * weight(rank.rank)).backward();
      RC_ASSERT(at::allclose(own.grad() / ranks, gradients[static_cast<std::size_t>(rank.rank)], 1e-12, 1e-14));
    });
  });
}

}  // namespace
}  // namespace accel::testing
