#include "reference/experts/token_dispatch_plan.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Numbers = std::vector<std::int64_t>;

// Different experts per token, in any order.
Numbers any_choices(std::int64_t num_tokens, const DispatchOptions& options) {
  Numbers choices;
  for (std::int64_t token = 0; token < num_tokens; ++token) {
    Numbers experts(static_cast<std::size_t>(options.num_experts));
    std::iota(experts.begin(), experts.end(), 0);
    for (std::int64_t position = 0; position < options.top_k; ++position) {
      const auto other = pick<std::int64_t>(position, options.num_experts);
      std::swap(experts[static_cast<std::size_t>(position)], experts[static_cast<std::size_t>(other)]);
      choices.push_back(experts[static_cast<std::size_t>(position)]);
    }
  }
  return choices;
}

DispatchOptions any_options() {
  DispatchOptions options{.num_experts = pick<std::int64_t>(1, 7)};
  options.top_k = pick<std::int64_t>(1, std::min<std::int64_t>(4, options.num_experts + 1));
  return options;
}

TEST(DispatchPlanTest, RowsAreOrderedByExpertAndThenByToken) {
  const auto plan = plan_dispatch({2, 0, 0, 1, 2, 1}, {.num_experts = 4, .top_k = 2});
  EXPECT_THAT(plan.choices, ElementsAre(1, 2, 3, 5, 0, 4));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(2, 2, 2, 0));
}

TEST(DispatchPlanTest, ARankWithoutTokensSendsNoRows) {
  const auto plan = plan_dispatch({}, {.num_experts = 2, .top_k = 2, .capacity_factor = 1});
  EXPECT_THAT(plan.choices, IsEmpty());
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(0, 0));
}

TEST(DispatchPlanTest, WithoutCapacityEveryChoiceIsSentOnceInOrder) {
  expect_property(200, [] {
    const auto options = any_options();
    const auto choices = any_choices(pick<std::int64_t>(0, 9), options);
    const auto plan = plan_dispatch(choices, options);
    Numbers expected(choices.size());
    std::iota(expected.begin(), expected.end(), 0);
    std::stable_sort(expected.begin(), expected.end(), [&](auto a, auto b) {
      return choices[static_cast<std::size_t>(a)] < choices[static_cast<std::size_t>(b)];
    });
    RC_ASSERT(plan.choices == expected);
    for (std::int64_t expert = 0; expert < options.num_experts; ++expert)
      RC_ASSERT(plan.rows_per_expert[static_cast<std::size_t>(expert)] ==
                std::count(choices.begin(), choices.end(), expert));
  });
}

TEST(DispatchPlanTest, TheCapacityIsRoundedUp) {
  EXPECT_EQ(expert_capacity(10, {.num_experts = 4, .top_k = 2, .capacity_factor = 1}), 5);
  EXPECT_EQ(expert_capacity(10, {.num_experts = 4, .top_k = 1, .capacity_factor = 1}), 3);
  EXPECT_EQ(expert_capacity(10, {.num_experts = 4, .top_k = 1, .capacity_factor = 0.5}), 2);
  EXPECT_EQ(expert_capacity(0, {.num_experts = 4, .top_k = 1, .capacity_factor = 2}), 0);
}

TEST(DispatchPlanTest, FirstChoicesAreKeptBeforeSecondOnes) {
  // Capacity 2. Expert 0 is the second choice of tokens 0 and 1, and the first of tokens 2 and 3.
  const auto plan = plan_dispatch({1, 0, 2, 0, 0, 1, 0, 2}, {.num_experts = 4, .top_k = 2, .capacity_factor = 1});
  EXPECT_THAT(plan.choices, ElementsAre(4, 6, 0, 5, 2, 7));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(2, 2, 2, 0));
}

TEST(DispatchPlanTest, EarlierTokensAreKeptBeforeLaterOnes) {
  const auto plan = plan_dispatch({0, 0, 1, 0}, {.num_experts = 2, .top_k = 1, .capacity_factor = 1});
  EXPECT_THAT(plan.choices, ElementsAre(0, 1, 2));
}

// A choice is kept exactly if fewer choices of the same expert than the capacity come before it: those at an earlier
// position of any token, and those at the same position of an earlier token.
TEST(DispatchPlanTest, AChoiceIsKeptIfFewerThanTheCapacityPrecedeIt) {
  expect_property(300, [] {
    auto options = any_options();
    options.capacity_factor = pick(1, 9) / 4.0;
    const auto num_tokens = pick<std::int64_t>(0, 9);
    const auto choices = any_choices(num_tokens, options);
    const auto capacity = expert_capacity(num_tokens, options);
    const auto plan = plan_dispatch(choices, options);
    const auto num_choices = static_cast<std::int64_t>(choices.size());
    for (std::int64_t choice = 0; choice < num_choices; ++choice) {
      std::int64_t before = 0;
      for (std::int64_t other = 0; other < num_choices; ++other) {
        const auto place = [&](std::int64_t c) { return std::pair(c % options.top_k, c / options.top_k); };
        before += choices[static_cast<std::size_t>(other)] == choices[static_cast<std::size_t>(choice)] &&
                  place(other) < place(choice);
      }
      const bool is_kept = std::find(plan.choices.begin(), plan.choices.end(), choice) != plan.choices.end();
      RC_ASSERT(is_kept == (before < capacity));
    }
    RC_ASSERT(std::accumulate(plan.rows_per_expert.begin(), plan.rows_per_expert.end(), std::int64_t{0}) ==
              static_cast<std::int64_t>(plan.choices.size()));
  });
}

TEST(DispatchPlanTest, AnUnknownExpertIsAnArgumentError) {
  EXPECT_THAT(message_of<ArgumentError>([] {
                (void)plan_dispatch({0, 1, 0, 2}, {.num_experts = 2, .top_k = 2});
              }),
              HasSubstr("token 1 chose expert 2; expected 0 or more and less than 2"));
}

TEST(ArrivalPlanTest, ExpertsReadRowsBySourceRank) {
  // Rank 0 sends 1 and 2 rows for the two experts of this rank, rank 1 sends 0 and 1, rank 2 sends 2 and 0.
  const auto plan = plan_arrival({1, 2, 0, 1, 2, 0}, 3);
  EXPECT_THAT(plan.rows_per_rank, ElementsAre(3, 1, 2));
  EXPECT_THAT(plan.rows_per_expert, ElementsAre(3, 3));
  EXPECT_THAT(plan.order, ElementsAre(0, 4, 5, 1, 2, 3));
}

}  // namespace
}  // namespace accel::testing
