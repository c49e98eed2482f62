#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/call.hpp"

// Note [Meeting]
// The n-th call of every member of a group is one Meeting. Members walk a chain of them, each with a cursor of its own:
// whoever comes first appends the next, under the group's mutex; all others find it there without a lock. A member
// writes its own slots only, and publishes them by counting itself in; the member that counts to the group's size owns
// all slots from there on. `state_` holds a bit "has ended" and, above it, the number of ranks that wait: a waiter adds
// itself and blocks unless the bit was there, and who sets the bit learns how many it wakes.
namespace accel::sim {

class World;
struct Group;

using Participant = std::shared_ptr<void>;
/// Runs once per meeting on the last rank to arrive; participants are sorted by group rank.
using Compute = std::function<void(std::span<const Participant>)>;
/// Hands a message over, the n-th of its receiver from this source.
using Deliver = std::function<void(const Participant& sent, const Participant& received, std::uint64_t sequence)>;
/// Told once that a meeting has ended: null if it ended well.
using OnEnd = std::function<void(std::exception_ptr)>;

/// One collective, or one message between two ranks.
class Meeting : public std::enable_shared_from_this<Meeting> {
 public:
  /// E.g. "all_reduce #17 of group world". Messages are counted by sender and receiver.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] bool has_ended() const { return (state_.load(std::memory_order_acquire) & kEnded) != 0; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  [[nodiscard]] const Group& group() const { return *group_; }
  /// Of a receive: the group rank that sent, or is to send; -1: any.
  [[nodiscard]] int source() const { return source_; }
  /// What `rank` sees, -1: somebody who is none: null unless the meeting ended in an error for it.
  [[nodiscard]] std::exception_ptr error(int rank) const;
  /// The call of any member that has arrived; null if none has.
  [[nodiscard]] const Call* any_call() const;

 private:
  friend class World;
  static constexpr std::uint32_t kEnded = 1, kOneWaiter = 2;

  Group* group_ = nullptr;  // null: it never ends (an injected hang)
  std::uint64_t sequence_ = 0;
  bool is_message_ = false;
  int source_ = -1;
  // Of a collective from its first call on, of a message once its receiver waits (as Gloo counts).
  std::atomic<std::chrono::steady_clock::time_point> deadline_{std::chrono::steady_clock::time_point::max()};

  // By group rank; written by the member before it is counted in.
  std::vector<std::optional<Call>> calls_;
  std::vector<Participant> participants_;
  std::vector<double> ready_;                   // virtual or wall seconds
  std::vector<std::atomic<bool>> has_arrived_;  // for a diagnosis meanwhile
  std::atomic<int> num_arrived_{0};
  std::atomic<Meeting*> next_{nullptr};  // the group's list of open ones keeps it alive

  // Written by who ends it.
  int last_to_arrive_ = -1;     // world rank
  double last_ready_ = 0;       // virtual or wall seconds
  std::vector<double> finish_;  // virtual seconds, by group rank
  double wall_end_ = 0;
  std::exception_ptr error_;
  std::function<std::exception_ptr(int rank)> rank_errors_;
  std::atomic<bool> is_claimed_{false};
  std::atomic<std::uint32_t> state_{0};

  Mutex mutex_;
  std::vector<OnEnd> on_end_ ACCEL_GUARDED_BY(mutex_);
};

/// The last call of a rank, as far as it is known to others.
struct Whereabouts {
  std::optional<Collective> op;  // absent before the first call
  const Group* group = nullptr;
  std::int64_t sequence = -1;
  int peer = -2;  // of a message; -1: any
  std::source_location where = {};
};
std::string describe(const Whereabouts& whereabouts);

/// Some ranks that meet under one name.
struct Group {
  std::string name;
  std::vector<int> ranks;  // world ranks, by group rank

  /// -1 if it is none of them.
  [[nodiscard]] int group_rank_of(int rank) const;

 private:
  friend class World;
  struct Posted {  // one end of a message that waits for the other
    std::shared_ptr<Meeting> meeting;
    int source = -1, destination = -1, tag = 0;
    Call call;
    Participant participant;
    Deliver deliver;
  };
  struct alignas(64) Cursor {
    std::shared_ptr<Meeting> last;
    std::uint64_t next_sequence = 0;
  };
  struct Apart {  // calls that agreed and came from different lines of the program
    std::uint64_t sequence = 0;
    std::vector<std::optional<Call>> calls;
  };

  std::vector<Cursor> cursors;  // by group rank, each its member's own
  Mutex mutex;
  std::map<std::uint64_t, std::shared_ptr<Meeting>> open ACCEL_GUARDED_BY(mutex);
  std::deque<Posted> sends ACCEL_GUARDED_BY(mutex);
  std::deque<Posted> receives ACCEL_GUARDED_BY(mutex);
  std::map<std::pair<int, int>, std::uint64_t> num_sends ACCEL_GUARDED_BY(mutex);     // by source and destination
  std::map<std::pair<int, int>, std::uint64_t> num_receives ACCEL_GUARDED_BY(mutex);  // source -1: any
  std::function<std::exception_ptr(int rank)> disconnected ACCEL_GUARDED_BY(mutex);   // set: nothing works any more
  std::atomic<bool> is_disconnected{false};
  std::optional<Apart> first_apart ACCEL_GUARDED_BY(mutex);
};

}  // namespace accel::sim
