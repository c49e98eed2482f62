// Shrinking follows QuickCheck: each dimension is reduced separately, and a smaller trial counts only if it
// fails with the same signature. Ranks come first because a run on fewer ranks is also the fastest to repeat.
#include "sim/engine/scheduling/explore.hpp"

namespace accel::sim {
namespace {

// An upper bound for the doubling if the program's own number of steps is unknown.
constexpr std::int64_t kStepsMax = 1 << 20;

// With fewer ranks the same seed gives another order, so a few more seeds are tried for each size.
constexpr std::uint64_t kSeedsPerSize = 5;

std::optional<Trial> failing_near(Trial trial, const std::string& signature, const RunTrial& run) {
  for (std::uint64_t more = 0; more < kSeedsPerSize; ++more, ++trial.schedule.seed) {
    if (run(trial) == signature) return trial;
  }
  return std::nullopt;
}

// Counts upwards: most bugs need only two or three ranks, and small runs are cheap.
Trial with_fewest_ranks(const Trial& failing, const std::string& signature, const RunTrial& run) {
  for (int num_ranks = 1; num_ranks < failing.num_ranks; ++num_ranks) {
    auto smaller = failing;
    smaller.num_ranks = num_ranks;
    if (auto found = failing_near(smaller, signature, run)) return *found;
  }
  return failing;
}

// Removes one fault at a time and keeps the removal if the failure stays. After a removal the index stays,
// because the next fault has moved to it.
Trial with_fewest_faults(Trial failing, const std::string& signature, const RunTrial& run) {
  for (std::size_t fault = 0; fault < failing.faults.size();) {
    auto without = failing;
    without.faults.erase(without.faults.begin() + static_cast<std::ptrdiff_t>(fault));
    if (auto found = failing_near(without, signature, run)) {
      failing = *found;
    } else {
      ++fault;
    }
  }
  return failing;
}

// Doubles the number of steps until the run fails, then bisects: a failure within n steps also occurs in longer
// runs. The last run confirms the result, because the assumption may not hold.
Trial with_fewest_steps(const Trial& failing, const std::string& signature, const RunTrial& run) {
  auto shorter = failing;
  const auto limit = failing.max_steps > 0 ? failing.max_steps : kStepsMax;
  std::int64_t low = 0, high = 1;
  for (;; low = high, high *= 2) {
    if (high >= limit) {
      high = limit;
      break;
    }
    shorter.max_steps = high;
    if (run(shorter) == signature) break;
  }
  while (high - low > 1) {
    shorter.max_steps = low + (high - low) / 2;
    (run(shorter) == signature ? high : low) = shorter.max_steps;
  }
  shorter.max_steps = high;
  return run(shorter) == signature ? shorter : failing;
}

}  // namespace

Trial shrink(Trial failing, const std::string& signature, const RunTrial& run) {
  failing = with_fewest_ranks(failing, signature, run);
  failing = with_fewest_faults(failing, signature, run);
  return failing.has_steps ? with_fewest_steps(failing, signature, run) : failing;
}

// Seeds are consecutive, so a second exploration can continue where the first one stopped.
Exploration explore(const Trial& first, std::int64_t num_schedules, const RunTrial& run) {
  Exploration exploration;
  auto trial = first;
  for (; exploration.num_schedules < num_schedules; ++trial.schedule.seed) {
    exploration.signature = run(trial);
    ++exploration.num_schedules;
    if (exploration.signature.empty()) continue;
    exploration.failure = shrink(trial, exploration.signature, run);
    return exploration;
  }
  return exploration;
}

}  // namespace accel::sim
