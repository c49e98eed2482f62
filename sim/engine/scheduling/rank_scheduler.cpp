// Note [Detecting quiescence]
// A hang is found by counting, not by a timer: `num_active_` is the number of ranks that can continue, plus the
// threads that are about to release some. It reaches 0 exactly when every rank is blocked or has left. The
// thread that takes it to 0 runs `on_quiescent`. In a serial schedule RankTurns detects the same moment: it
// finds no runnable rank when it passes the turn.
#include "sim/engine/scheduling/rank_scheduler.hpp"

#include <atomic>
#include <vector>

namespace accel::sim {
namespace {

// All ranks run at once, and the ranks that can continue are counted. See Note [Detecting quiescence].
class ParallelScheduler : public RankScheduler {
 public:
  ParallelScheduler(int num_ranks, std::function<void()> on_quiescent, SleepUntilEnded sleep)
      : num_ranks_(num_ranks),
        on_quiescent_(std::move(on_quiescent)),
        sleep_(std::move(sleep)),
        num_active_(num_ranks) {}

  [[nodiscard]] bool is_serial() const override { return false; }
  void begin(int /*rank*/) override {}
  void yield(int /*rank*/) override {}
  void poll(int /*rank*/) override {}
  void postpone(int /*rank*/) override {}

  // After a sleep that returned early the rank counts as active again before it stops waiting, so that it is never
  // missing in the count. If the completion has ended in between, its end has counted the rank too.
  void block(int rank, Completion& completion) override {
    if (!completion.add_waiter()) return;
    subtract_active(1);
    sleep_ ? sleep_(rank, completion) : completion.sleep();
    if (completion.has_ended()) return;
    num_active_.fetch_add(1);
    if (!completion.remove_waiter()) subtract_active(1);
  }

  // Counted as left before it counts as inactive, so that the end of the last rank is not taken for a hang.
  void leave(int /*rank*/) override {
    num_left_.fetch_add(1);
    subtract_active(1);
  }

  void end(Completion& completion) override {
    // Waiters count as active before they can run, so that the count cannot reach 0 while some are being woken.
    // Their number is not known before `set_ended`, so all ranks are added first and the surplus is subtracted
    // at the end.
    num_active_.fetch_add(num_ranks_);
    const int num_waiters = completion.set_ended();
    // Callbacks run before the waiters wake: a waiting rank reads its future next and would otherwise sleep again.
    completion.notify();
    if (num_waiters > 0) completion.wake_waiters();
    subtract_active(num_ranks_ - num_waiters);
  }

  [[nodiscard]] bool has_turn(int /*rank*/) override { return true; }
  [[nodiscard]] RankTurns::Holder holder() override { return {}; }
  void abandon() override {}

 private:
  void subtract_active(int count) {
    if (num_active_.fetch_sub(count) != count) return;
    if (num_left_.load() == num_ranks_) return;  // no rank is blocked
    num_active_.fetch_add(1);  // counts the resolver: ending completions one by one is not quiescent in between
    on_quiescent_();
    subtract_active(1);
  }

  const int num_ranks_;
  const std::function<void()> on_quiescent_;
  const SleepUntilEnded sleep_;
  std::atomic<int> num_active_;  // ranks that can continue
  std::atomic<int> num_left_{0};
};

// One rank at a time, in the order that RankTurns chooses.
class SerialScheduler : public RankScheduler {
 public:
  SerialScheduler(const RankSchedule& schedule, int num_ranks, std::function<void()> on_quiescent)
      : turns_(schedule, num_ranks, std::move(on_quiescent)), waits_for_(num_ranks) {}

  [[nodiscard]] bool is_serial() const override { return true; }
  void begin(int rank) override { turns_.begin(rank); }
  void yield(int rank) override { turns_.yield(rank); }
  void poll(int rank) override { turns_.poll(rank); }
  void postpone(int rank) override { turns_.postpone(rank); }

  // Loops because `block` may return early: after `abandon` it returns at once, and the failure that led to it
  // then ends every completion.
  void block(int rank, Completion& completion) override {
    waits_for_[rank] = &completion;
    while (!completion.has_ended()) turns_.block(rank);
    waits_for_[rank] = nullptr;
  }

  void leave(int rank) override { turns_.leave(rank); }

  void end(Completion& completion) override {
    completion.set_ended();
    completion.notify();
    // Called by the rank that has the turn, or by the watchdog when it fails the run; hence the atomics.
    for (std::size_t rank = 0; rank < waits_for_.size(); ++rank) {
      if (waits_for_[rank] == &completion) turns_.wake(static_cast<int>(rank));
    }
  }

  [[nodiscard]] bool has_turn(int rank) override { return turns_.holder().rank == rank; }
  [[nodiscard]] RankTurns::Holder holder() override { return turns_.holder(); }
  void abandon() override { turns_.abandon(); }

 private:
  RankTurns turns_;
  std::vector<std::atomic<const Completion*>> waits_for_;  // by rank; null: it is not blocked
};

}  // namespace

std::unique_ptr<RankScheduler> make_rank_scheduler(const RankSchedule& schedule, int num_ranks,
                                                   std::function<void()> on_quiescent, SleepUntilEnded sleep) {
  if (schedule.kind == ScheduleKind::kParallel)
    return std::make_unique<ParallelScheduler>(num_ranks, std::move(on_quiescent), std::move(sleep));
  return std::make_unique<SerialScheduler>(schedule, num_ranks, std::move(on_quiescent));
}

}  // namespace accel::sim
