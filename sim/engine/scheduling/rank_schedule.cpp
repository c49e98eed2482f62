// The policies of serial schedules. A policy is a pure function of its seed and of the runnable ranks that it
// is shown, so a run can be repeated from its seed.
#include "sim/engine/scheduling/rank_schedule.hpp"

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "reference/core/splitmix64.hpp"

namespace accel::sim {
namespace {

// splitmix64 of (seed, n). Stateless, so each decision depends on its own index only: adding a draw in one
// place does not change the others.
std::uint64_t random_number(std::uint64_t seed, std::uint64_t n) {
  return splitmix64(seed * 0xD1B54A32D192ED03ull + n * 0x9E3779B97F4A7C15ull);
}

// The next higher runnable rank, with wrap-around: the plainest order, and the reference for `explore`.
class RoundRobin : public TurnPolicy {
 public:
  int next(const std::vector<int>& runnable, int current) override {
    const auto after = std::upper_bound(runnable.begin(), runnable.end(), current);
    return after == runnable.end() ? runnable.front() : *after;
  }
};

// Chooses uniformly at each turn. Simple, but a bug that needs one rank to lag far behind is exponentially
// unlikely; Pct covers that case.
class RandomWalk : public TurnPolicy {
 public:
  explicit RandomWalk(std::uint64_t seed) : seed_(seed) {}
  int next(const std::vector<int>& runnable, int /*current*/) override {
    return runnable[random_number(seed_, turn_++) % runnable.size()];
  }

 private:
  const std::uint64_t seed_;
  std::uint64_t turn_ = 0;
};

// Returns a turn below 2^20 for a run of unknown length: each power of two is equally likely, so short and long
// runs get their changes with the same probability.
std::uint64_t turn_of_any_length(std::uint64_t number) {
  constexpr std::uint64_t kPowers = 20;
  const auto power = std::uint64_t{1} << number % kPowers;
  return power - 1 + number / kPowers % power;
}

// Probabilistic concurrency testing (see the header for the paper): the runnable rank with the highest priority
// runs, and at depth - 1 random turns the running rank drops to a low priority. A bug that needs d ordering
// constraints is found with probability at least 1 / (ranks * turns^(d-1)).
class Pct : public TurnPolicy {
 public:
  Pct(const RankSchedule& options, int num_ranks) : priorities_(num_ranks) {
    // Initial priorities start at depth, so every lowered priority (1 .. depth - 1) is below all of them. The
    // shuffle gives their random order.
    std::iota(priorities_.begin(), priorities_.end(), std::int64_t{options.pct_depth});
    for (int rank = num_ranks - 1; rank > 0; --rank)
      std::swap(priorities_[rank], priorities_[random_number(options.seed, rank) % (rank + 1)]);
    for (int change = 1; change < options.pct_depth; ++change) {
      const auto number = random_number(options.seed, num_ranks + change);
      changes_.push_back(options.pct_events ? number % std::max<std::uint64_t>(*options.pct_events, 1)
                                            : turn_of_any_length(number));
    }
  }

  int next(const std::vector<int>& runnable, int current) override {
    for (std::size_t change = 0; change < changes_.size(); ++change) {
      if (changes_[change] == turn_ && current >= 0)
        priorities_[current] = static_cast<std::int64_t>(changes_.size() - change);
    }
    ++turn_;
    return *std::max_element(runnable.begin(), runnable.end(),
                             [&](int a, int b) { return priorities_[a] < priorities_[b]; });
  }

  // A polling rank goes below all others; otherwise the rank with the highest priority would poll forever.
  void demote(int rank) override { priorities_[rank] = --lowest_; }

 private:
  std::vector<std::int64_t> priorities_;  // by rank
  std::vector<std::uint64_t> changes_;    // turns at which the running rank drops to a low priority
  std::uint64_t turn_ = 0;
  std::int64_t lowest_ = 0;
};

constexpr std::pair<const char*, ScheduleKind> kNames[] = {{"parallel", ScheduleKind::kParallel},
                                                           {"round-robin", ScheduleKind::kRoundRobin},
                                                           {"random", ScheduleKind::kRandom},
                                                           {"pct", ScheduleKind::kPct}};

}  // namespace

ScheduleKind rank_schedule_kind(const std::string& name) {
  for (const auto& [known, kind] : kNames) {
    if (name == known) return kind;
  }
  throw ConfigError(fmt::format("unknown schedule '{}'; expected parallel, round-robin, random or pct", name));
}

std::string name_of(ScheduleKind kind) {
  for (const auto& [name, known] : kNames) {
    if (kind == known) return name;
  }
  throw InternalError("unknown schedule");
}

std::unique_ptr<TurnPolicy> make_turn_policy(const RankSchedule& options, int num_ranks) {
  switch (options.kind) {
    case ScheduleKind::kRoundRobin: return std::make_unique<RoundRobin>();
    case ScheduleKind::kRandom: return std::make_unique<RandomWalk>(options.seed);
    case ScheduleKind::kPct: return std::make_unique<Pct>(options, num_ranks);
    case ScheduleKind::kParallel: break;
  }
  throw ConfigError("schedule: 'parallel' has no turns; expected round-robin, random or pct");
}

}  // namespace accel::sim
