#include "sim/engine/schedule.hpp"

#include <algorithm>
#include <numeric>

#include "reference/core/errors.hpp"
#include "sim/engine/futex.hpp"

namespace accel::sim {
namespace {

// splitmix64: the n-th number of a stream, which no other draw shifts.
std::uint64_t random_number(std::uint64_t seed, std::uint64_t n) {
  auto z = seed * 0xD1B54A32D192ED03ull + (n + 1) * 0x9E3779B97F4A7C15ull;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

class RoundRobin : public SchedulePolicy {
 public:
  int next(const std::vector<int>& runnable, int current) override {
    const auto after = std::upper_bound(runnable.begin(), runnable.end(), current);
    return after == runnable.end() ? runnable.front() : *after;
  }
};

class RandomWalk : public SchedulePolicy {
 public:
  explicit RandomWalk(std::uint64_t seed) : seed_(seed) {}
  int next(const std::vector<int>& runnable, int /*current*/) override {
    return runnable[random_number(seed_, turn_++) % runnable.size()];
  }

 private:
  const std::uint64_t seed_;
  std::uint64_t turn_ = 0;
};

// A turn of a run of unknown length, below a million: each power of two is as likely as the next.
std::uint64_t turn_of_any_length(std::uint64_t number) {
  constexpr std::uint64_t kPowers = 20;
  const auto power = std::uint64_t{1} << number % kPowers;
  return power - 1 + number / kPowers % power;
}

class Pct : public SchedulePolicy {
 public:
  Pct(const RankSchedule& options, int num_ranks) : priorities_(num_ranks) {
    // Above all changed ones, in random order.
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

  void demote(int rank) override { priorities_[rank] = --lowest_; }

 private:
  std::vector<std::int64_t> priorities_;  // by rank
  std::vector<std::uint64_t> changes_;    // turns at which the running rank loses its priority
  std::uint64_t turn_ = 0;
  std::int64_t lowest_ = 0;
};

constexpr std::pair<const char*, ScheduleKind> kNames[] = {{"parallel", ScheduleKind::kParallel},
                                                           {"round-robin", ScheduleKind::kRoundRobin},
                                                           {"random", ScheduleKind::kRandom},
                                                           {"pct", ScheduleKind::kPct}};

}  // namespace

ScheduleKind schedule_of(const std::string& name) {
  for (const auto& [known, kind] : kNames) {
    if (name == known) return kind;
  }
  throw ConfigError(fmt::format("'{}' is no schedule; expected parallel, round-robin, random or pct", name));
}

std::string name_of(ScheduleKind kind) {
  for (const auto& [name, known] : kNames) {
    if (kind == known) return name;
  }
  throw InternalError("unknown schedule");
}

std::unique_ptr<SchedulePolicy> make_policy(const RankSchedule& options, int num_ranks) {
  switch (options.kind) {
    case ScheduleKind::kRoundRobin: return std::make_unique<RoundRobin>();
    case ScheduleKind::kRandom: return std::make_unique<RandomWalk>(options.seed);
    case ScheduleKind::kPct: return std::make_unique<Pct>(options, num_ranks);
    case ScheduleKind::kParallel: break;
  }
  throw ConfigError("schedule: the parallel one picks nobody");
}

Baton::Baton(const RankSchedule& options, int num_ranks, std::function<void()> on_quiescent)
    : policy_(make_policy(options, num_ranks)),
      on_quiescent_(std::move(on_quiescent)),
      states_(num_ranks, State::kAbsent),
      turns_(num_ranks) {}

void Baton::begin(int rank) {
  bool all_begun = false;
  {
    const MutexLock lock(mutex_);
    states_[rank] = State::kRunnable;
    all_begun = ++num_begun_ == static_cast<int>(states_.size());
  }
  if (all_begun) give(choose(/*current=*/-1));
  await_turn(rank);
}

void Baton::yield(int rank) {
  if (abandoned_) return;
  {
    const MutexLock lock(mutex_);
    polling_.clear();
  }
  pass_turn(rank);
}

void Baton::pass_turn(int rank) {
  const int next = choose(rank);
  if (next == rank) return;
  give(next);
  await_turn(rank);
}

void Baton::poll(int rank) {
  if (abandoned_) return;
  policy_->demote(rank);
  release_postponed_for(rank);
  pass_turn(rank);
}

// What all that can run ask for may have to come from one that is postponed.
void Baton::release_postponed_for(int polling) {
  const MutexLock lock(mutex_);
  polling_.insert(polling);
  for (int rank = 0; rank < static_cast<int>(states_.size()); ++rank) {
    if (states_[rank] == State::kRunnable && !polling_.contains(rank)) return;
  }
  const auto postponed = std::find(states_.begin(), states_.end(), State::kPostponed);
  if (postponed != states_.end()) *postponed = State::kRunnable;
  polling_.clear();
}

void Baton::block(int rank) {
  {
    const MutexLock lock(mutex_);
    if (!abandoned_) states_[rank] = State::kBlocked;
  }
  pass(rank);
  await_turn(rank);
}

void Baton::postpone(int rank) {
  {
    const MutexLock lock(mutex_);
    states_[rank] = State::kPostponed;
  }
  yield(rank);
}

void Baton::leave(int rank) {
  {
    const MutexLock lock(mutex_);
    states_[rank] = State::kLeft;
  }
  pass(rank);
}

void Baton::wake(int rank) {
  const MutexLock lock(mutex_);
  if (states_[rank] == State::kBlocked) states_[rank] = State::kRunnable;
}

void Baton::abandon() {
  abandoned_ = true;
  for (std::size_t rank = 0; rank < turns_.size(); ++rank) give(static_cast<int>(rank));
}

int Baton::choose(int current) {
  const MutexLock lock(mutex_);
  std::vector<int> runnable, postponed;
  for (int rank = 0; rank < static_cast<int>(states_.size()); ++rank) {
    if (states_[rank] == State::kRunnable) runnable.push_back(rank);
    if (states_[rank] == State::kPostponed) postponed.push_back(rank);
  }
  int next = -1;
  if (!runnable.empty()) {
    next = policy_->next(runnable, current);
  } else if (!postponed.empty()) {
    next = postponed.front();
    states_[next] = State::kRunnable;
  }
  holder_ = {next, std::chrono::steady_clock::now()};
  return next;
}

Baton::Holder Baton::holder() {
  const MutexLock lock(mutex_);
  return holder_;
}

void Baton::pass(int from) {
  if (abandoned_) return;
  int next = choose(from);
  if (next < 0 && somebody_is_blocked()) {
    on_quiescent_();
    next = choose(from);
  }
  if (next >= 0) give(next);
}

bool Baton::somebody_is_blocked() {
  const MutexLock lock(mutex_);
  return std::find(states_.begin(), states_.end(), State::kBlocked) != states_.end();
}

void Baton::give(int rank) {
  turns_[rank].given.store(1, std::memory_order_release);
  wake_all(turns_[rank].given);
}

void Baton::await_turn(int rank) {
  auto& given = turns_[rank].given;
  sleep_while(given, 0);
  given.exchange(0, std::memory_order_acq_rel);
  if (abandoned_)
    given.store(1, std::memory_order_release);  // for good; `abandon` may have given it just before the exchange
}

}  // namespace accel::sim
