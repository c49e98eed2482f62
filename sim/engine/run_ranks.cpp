#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

constexpr auto kStartDeadline = std::chrono::seconds(10);
constexpr auto kDeadlineTick = std::chrono::milliseconds(100);

// User code begins only when every rank holds a thread of its own: else a blocked rank could keep another from
// starting, forever.
class StartGate {
 public:
  explicit StartGate(int num_ranks) : num_ranks_(num_ranks) {}

  bool pass() {
    std::unique_lock lock(mutex_);
    if (++num_started_ == num_ranks_) changed_.notify_all();
    changed_.wait(lock, [&] { return num_started_ == num_ranks_ || closed_; });
    return !closed_;
  }

  /// Number of ranks that started before the deadline; the gate is closed if some did not.
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

RankOutcome outcome_of(int rank, std::exception_ptr error) {
  RankOutcome outcome{.rank = rank, .message = "", .error = error};
  if (!error) return outcome;
  try {
    std::rethrow_exception(error);
  } catch (const ReleasedError& exception) {
    outcome.message = exception.what();
    outcome.released = true;
  } catch (const std::exception& exception) {
    outcome.message = exception.what();
  } catch (...) {
    outcome.message = "an exception that is not a std::exception";
  }
  return outcome;
}

}  // namespace

void run_ranks(World& world, const std::function<void(int)>& body) {
  const int num_ranks = world.num_ranks();
  StartGate gate(num_ranks);
  std::vector<std::exception_ptr> errors(num_ranks);
  std::mutex mutex;
  std::condition_variable all_ended;
  int num_ended = 0;

  auto& executor = world.executor();
  executor.start(num_ranks, [&](int rank) {
    if (gate.pass()) {
      try {
        world.begin(rank);
        body(rank);
      } catch (...) {
        errors[rank] = std::current_exception();
      }
      world.leave(rank, errors[rank]);
    }
    const std::lock_guard lock(mutex);
    ++num_ended;
    all_ended.notify_all();
  });

  const int num_started = gate.wait();
  {
    std::unique_lock lock(mutex);
    while (!all_ended.wait_for(lock, kDeadlineTick, [&] { return num_ended == num_ranks; })) {
      lock.unlock();
      world.check_deadlines();
      lock.lock();
    }
  }
  executor.join();
  check_config(num_started == num_ranks, "ranks: the machine gave {} threads for {} ranks within {} s; use fewer ranks",
               num_started, num_ranks, std::chrono::seconds(kStartDeadline).count());

  if (std::all_of(errors.begin(), errors.end(), [](const auto& error) { return error == nullptr; })) {
    const auto failure = world.failure();  // after the last call of every rank: none of them has seen it
    if (!failure) return;
    std::fill(errors.begin(), errors.end(), failure);
  }
  std::vector<RankOutcome> outcomes;
  for (int rank = 0; rank < num_ranks; ++rank) outcomes.push_back(outcome_of(rank, errors[rank]));
  throw RunError(std::move(outcomes), world.diagnosis());
}

}  // namespace accel::sim
