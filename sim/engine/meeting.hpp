#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "reference/diagnosis/collective_call.hpp"
#include "sim/engine/group.hpp"
#include "sim/engine/scheduling/completion.hpp"

namespace accel::sim {

using Participant = std::shared_ptr<void>;
/// Runs once per meeting on the thread of the last rank to arrive; participants are sorted by group rank.
using Compute = std::function<void(std::span<const Participant>)>;
/// Copies a message from sender to receiver; `sequence` counts the receiver's messages from this source.
using Deliver = std::function<void(const Participant& sent, const Participant& received, std::uint64_t sequence)>;

/// When the members of a meeting were ready, and when they had their results. Empty or 0 if no time is kept.
struct MeetingTimes {
  std::vector<double> ready;   // virtual or wall seconds, by group rank; collectives only
  double last_ready = 0;       // virtual or wall seconds
  int last_to_arrive = -1;     // world rank
  std::vector<double> finish;  // virtual seconds, by group rank; for a message: the receiver's
  double wall_end = 0;
};

/// One collective, or one message between two ranks.
///
/// Thread rule: a member writes only its own slots and publishes them by `join`. The member that arrives last
/// owns all slots and `times` from then until it ends the meeting. Afterwards every thread may read them.
class Meeting : public Completion, public std::enable_shared_from_this<Meeting> {
 public:
  using Deadline = std::chrono::steady_clock::time_point;

  /// A meeting without a group that never ends on its own: an injected hang.
  Meeting() = default;
  /// The group's `sequence`-th collective.
  Meeting(const EngineGroup& group, std::uint64_t sequence, bool keeps_time);
  /// One rank's call that no other rank joins, because the group is broken.
  Meeting(const EngineGroup& group, Call call);
  /// One end of the `sequence`-th message between two ranks.
  Meeting(const EngineGroup& group, Call call, std::uint64_t sequence);

  /// E.g. "all_reduce #17 of group world". Messages are counted by sender and receiver.
  [[nodiscard]] std::string name() const;
  [[nodiscard]] const EngineGroup& group() const { return *group_; }
  [[nodiscard]] bool has_group() const { return group_ != nullptr; }
  [[nodiscard]] bool is_message() const { return is_message_; }
  [[nodiscard]] std::uint64_t sequence() const { return sequence_; }
  /// For a message: the group rank at its other end; -1: any.
  [[nodiscard]] int peer() const { return peer_; }
  void set_peer(int peer) { peer_ = peer; }

  /// Returns the call of some member that has arrived; null if none has.
  [[nodiscard]] const Call* any_call() const;
  [[nodiscard]] bool has_arrived(std::size_t member) const {
    return has_arrived_[member].load(std::memory_order_acquire);
  }
  /// By group rank; complete once all have arrived.
  [[nodiscard]] const std::vector<std::optional<Call>>& calls() const { return calls_; }
  [[nodiscard]] const std::vector<Participant>& participants() const { return participants_; }
  void release_participants() { participants_.clear(); }

  /// Writes the slots of one member. Returns true for the last one. `ready`: null if no time is kept.
  bool join(int member, Call call, Participant participant, std::optional<double> ready);

  /// When the wait times out: counted for a collective from its first call, for a message from the receiver's
  /// wait, as in Gloo.
  [[nodiscard]] Deadline deadline() const { return deadline_.load(); }
  void set_deadline(Deadline deadline) { deadline_ = deadline; }

  /// The next collective of the group; null if no member has created it. See Note [Collective chain] for who owns it.
  [[nodiscard]] Meeting* next() const { return next_.load(std::memory_order_acquire); }
  void set_next(Meeting* next) { next_.store(next, std::memory_order_release); }

  MeetingTimes times;

 private:
  const EngineGroup* group_ = nullptr;
  std::uint64_t sequence_ = 0;
  bool is_message_ = false;
  int peer_ = -1;
  std::atomic<Deadline> deadline_{Deadline::max()};

  // By group rank; written by the member before it is counted in.
  std::vector<std::optional<Call>> calls_;
  std::vector<Participant> participants_;
  std::vector<std::atomic<bool>> has_arrived_;  // lets a diagnosis read calls_ before all have arrived
  std::atomic<int> num_arrived_{0};
  std::atomic<Meeting*> next_{nullptr};
};

}  // namespace accel::sim
