// The life of a run: starts one thread per rank, watches deadlines while they run, and combines their errors
// into one.
#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <optional>

#include "reference/core/error_text.hpp"

#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

constexpr auto kStartDeadline = std::chrono::seconds(10);
constexpr auto kDeadlineTick = std::chrono::milliseconds(100);
constexpr auto kGrace = std::chrono::seconds(1);  // for a rank to return from its own code after a failure

// Delays user code until every rank holds a thread. Otherwise a blocked rank could occupy the thread that
// another rank needs to start, and the run would never end.
class StartGate {
 public:
  explicit StartGate(int num_ranks) : num_ranks_(num_ranks) {}

  bool pass() {
    std::unique_lock lock(mutex_);
    if (++num_started_ == num_ranks_) changed_.notify_all();
    changed_.wait(lock, [&] { return num_started_ == num_ranks_ || closed_; });
    return !closed_;
  }

  /// Returns the number of ranks that started before the deadline; closes the gate if some did not.
  int wait() {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kStartDeadline, [&] { return num_started_ == num_ranks_; })) {
      closed_ = true;
      changed_.notify_all();
    }
    return num_started_;
  }

 private:
  const int num_ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int num_started_ = 0;
  bool closed_ = false;
};

// Collects the ranks that have ended, and their errors.
class RankExits {
 public:
  using Errors = std::vector<std::optional<std::exception_ptr>>;  // by rank; nullopt: the rank has not ended

  explicit RankExits(int num_ranks) : errors_(num_ranks) {}

  void add(int rank, std::exception_ptr error) {
    const std::lock_guard lock(mutex_);
    errors_[rank] = std::move(error);
    if (++num_ended_ == errors_.size()) all_ended_.notify_all();
  }
  /// Returns whether all ranks have ended; waits at most one tick.
  bool wait_for_all() {
    std::unique_lock lock(mutex_);
    return all_ended_.wait_for(lock, kDeadlineTick, [&] { return num_ended_ == errors_.size(); });
  }
  Errors errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_ended_;
  std::size_t num_ended_ = 0;
  Errors errors_;
};

// Separates ranks that failed from ranks that were only released by another's failure: the message lists causes first.
RankOutcome outcome_of(int rank, std::exception_ptr error) {
  RankOutcome outcome{.rank = rank, .message = "", .error = error};
  if (!error) return outcome;
  try {
    std::rethrow_exception(error);
  } catch (const ReleasedError& exception) {
    outcome.message = text_of(exception);
    outcome.released = true;
  } catch (const std::exception& exception) {
    outcome.message = text_of(exception);
  } catch (...) {
    outcome.message = "an exception that is not a std::exception";
  }
  return outcome;
}

// A rank that has not ended gets a text that says what it does instead of an error.
RunError error_of(World& world, const RankExits::Errors& errors) {
  std::vector<RankOutcome> outcomes;
  for (int rank = 0; rank < world.num_ranks(); ++rank) {
    const auto where =
        errors[rank] ? "" : fmt::format("has not returned from its own code; it {}", world.describe_rank(rank));
    outcomes.push_back(outcome_of(rank, errors[rank] ? *errors[rank] : std::make_exception_ptr(CommError(where))));
  }
  return {std::move(outcomes), world.failures().diagnosis()};
}

// The ranks of an elastic run that have ended well have completed it without those whose processes have ended.
void forgive_ended_processes(World& world, RankExits::Errors& errors) {
  if (!world.is_elastic() || world.failures().has_failed()) return;
  if (std::none_of(errors.begin(), errors.end(), [](const auto& error) { return *error == nullptr; })) return;
  const auto changes = world.process_changes();
  for (int rank = 0; rank < world.num_ranks(); ++rank) {
    if (!runs_after(changes, rank)) errors[rank] = std::exception_ptr();
  }
}

// How long a rank may run its own code after a failure before it is reported as stuck. A rank that computes
// notices the failure in its next call, normally within the time-out; if the time-out has already passed, only
// the grace period remains.
std::chrono::milliseconds grace_period_of(World& world) {
  const auto diagnosis = world.failures().diagnosis();
  const bool has_passed = diagnosis && diagnosis->kind == Diagnosis::Kind::kTimeout;
  return has_passed ? kGrace : kGrace + world.timeout();
}

// The launching thread is the watchdog: it checks deadlines at every tick. It cannot end a rank that never
// returns, so it reports once and keeps waiting; programs then end the process from `on_stuck`.
void wait_for_all(World& world, RankExits& endings) {
  using Clock = std::chrono::steady_clock;
  std::optional<Clock::time_point> failed_at;
  bool has_reported = false;
  while (!endings.wait_for_all()) {
    world.check_deadlines();
    if (!failed_at && world.failures().failure()) failed_at = Clock::now();
    if (has_reported || !failed_at || Clock::now() - *failed_at < grace_period_of(world)) continue;
    has_reported = true;
    world.report_stuck(error_of(world, endings.errors()));
  }
}

}  // namespace

void run_ranks(World& world, const std::function<void(int)>& body) {
  const int num_ranks = world.num_ranks();
  StartGate gate(num_ranks);
  RankExits endings(num_ranks);

  auto& executor = world.executor();
  // The task catches everything: an exception that leaves a thread would end the process.
  executor.start(num_ranks, [&](int rank) {
    std::exception_ptr error;
    if (gate.pass()) {
      try {
        world.begin(rank);
        body(rank);
      } catch (...) {
        error = std::current_exception();
      }
      world.leave(rank, error);
    }
    endings.add(rank, error);
  });

  const int num_started = gate.wait();
  wait_for_all(world, endings);
  executor.join();
  check_config(num_started == num_ranks,
               "ranks: the machine started {} of {} threads within {} s; use fewer ranks or raise the limit on threads",
               num_started, num_ranks, std::chrono::seconds(kStartDeadline).count());

  auto errors = endings.errors();
  forgive_ended_processes(world, errors);
  if (std::all_of(errors.begin(), errors.end(), [](const auto& error) { return *error == nullptr; })) {
    const auto failure = world.failures().failure();  // failed after the last call of every rank, so no rank saw it
    if (!failure) return;
    std::fill(errors.begin(), errors.end(), failure);
  }
  throw error_of(world, errors);
}

}  // namespace accel::sim
