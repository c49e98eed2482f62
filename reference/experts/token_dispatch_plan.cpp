#include "reference/experts/token_dispatch_plan.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "reference/core/errors.hpp"

namespace accel::parallel {
namespace {

using Counts = std::vector<std::int64_t>;

// The index of the first row of each group.
Counts begins_of(const Counts& sizes) {
  Counts begins;
  std::int64_t begin = 0;
  for (const auto size : sizes) {
    begins.push_back(begin);
    begin += size;
  }
  return begins;
}

std::size_t index(std::int64_t value) { return static_cast<std::size_t>(value); }

}  // namespace

std::int64_t expert_capacity(std::int64_t num_tokens, const DispatchOptions& options) {
  if (!options.capacity_factor) return std::numeric_limits<std::int64_t>::max();
  const auto mean = static_cast<double>(num_tokens * options.top_k) / static_cast<double>(options.num_experts);
  return static_cast<std::int64_t>(std::ceil(mean * *options.capacity_factor));
}

TokenDispatchPlan plan_dispatch(const std::vector<std::int64_t>& experts, const DispatchOptions& options) {
  const auto num_choices = static_cast<std::int64_t>(experts.size());
  const auto capacity = expert_capacity(num_choices / options.top_k, options);
  TokenDispatchPlan plan{.rows_per_expert = Counts(index(options.num_experts))};
  std::vector<bool> is_kept(experts.size());
  for (std::int64_t position = 0; position < options.top_k; ++position) {
    for (auto choice = position; choice < num_choices; choice += options.top_k) {
      const auto expert = experts[index(choice)];
      check_argument(expert >= 0 && expert < options.num_experts,
                     "plan_dispatch: token {} chose expert {}; expected 0 or more and less than {}",
                     choice / options.top_k, expert, options.num_experts);
      auto& rows = plan.rows_per_expert[index(expert)];
      if (rows == capacity) continue;
      ++rows;
      is_kept[index(choice)] = true;
    }
  }
  auto next = begins_of(plan.rows_per_expert);
  plan.choices.resize(index(std::count(is_kept.begin(), is_kept.end(), true)));
  for (std::int64_t choice = 0; choice < num_choices; ++choice) {
    if (is_kept[index(choice)]) plan.choices[index(next[index(experts[index(choice)])]++)] = choice;
  }
  return plan;
}

ArrivalPlan plan_arrival(const std::vector<std::int64_t>& counts, std::int64_t num_ranks) {
  const auto num_experts = static_cast<std::int64_t>(counts.size()) / num_ranks;
  const auto begins = begins_of(counts);
  ArrivalPlan plan{.rows_per_rank = Counts(index(num_ranks)), .rows_per_expert = Counts(index(num_experts))};
  for (std::int64_t expert = 0; expert < num_experts; ++expert) {
    for (std::int64_t rank = 0; rank < num_ranks; ++rank) {
      const auto block = index(rank * num_experts + expert);
      plan.rows_per_rank[index(rank)] += counts[block];
      plan.rows_per_expert[index(expert)] += counts[block];
      for (std::int64_t row = 0; row < counts[block]; ++row) plan.order.push_back(begins[block] + row);
    }
  }
  return plan;
}

}  // namespace accel::parallel
