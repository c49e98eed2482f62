#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/failure_record.hpp"
#include "sim/engine/group.hpp"
#include "sim/engine/meeting.hpp"

// Note [Opening a meeting while the run fails]
// A thread that fails the run, or disconnects a group, first sets a flag (FailureRecord, Connection) and then
// collects the open meetings of each kind under that kind's mutex. A thread that opens a meeting checks the
// flags (`Connection::may_open_meeting`) under the same mutex. So every meeting is either collected and ended, or never
// opened: none is left open with ranks waiting for it.
namespace accel::sim {

using Meetings = std::vector<std::shared_ptr<Meeting>>;

/// The state of the connections between the ranks of a group.
///
/// Thread rule: any thread.
class Connection {
 public:
  explicit Connection(const FailureRecord& failures) : failures_(failures) {}

  [[nodiscard]] bool is_broken() const { return is_broken_; }
  /// Makes every later call in the group fail with these errors. Returns false if it was already broken.
  bool break_with(RankErrors errors);
  [[nodiscard]] RankErrors errors();
  /// Returns whether a meeting may be opened; throws if the run has failed. See Note [Opening a meeting while
  /// the run fails].
  [[nodiscard]] bool may_open_meeting() const;

 private:
  const FailureRecord& failures_;
  Mutex mutex_;
  RankErrors errors_ ACCEL_GUARDED_BY(mutex_);
  std::atomic<bool> is_broken_{false};
};

// Note [Collective chain]
// The n-th calls of all members of a group form one Meeting. The meetings are a linked list, and every member
// has a cursor in it. The first member to need the next meeting appends it under the mutex; the others follow
// the link without a lock, which matters with thousands of ranks.

/// The collectives of one group.
///
/// Thread rule: call methods that accept a member from its thread, the others from any thread.
class CollectiveChain {
 public:
  CollectiveChain(std::size_t num_members, const Connection& connection);

  struct MeetingOptions {
    std::chrono::milliseconds timeout;
    bool keeps_time = false;
  };
  /// Returns the member's next collective; null if the connection is broken. Throws if the run has failed.
  std::shared_ptr<Meeting> next(const EngineGroup& group, int member, const MeetingOptions& options);
  /// Returns the number of collectives that the member has joined.
  [[nodiscard]] std::uint64_t num_joined(int member) const { return cursors_[member].next_sequence; }

  /// Removes a meeting from the open ones, once all members have arrived.
  void close(const Meeting& meeting);
  [[nodiscard]] Meetings open();

  struct Apart {  // calls that agree but come from different lines of the program
    std::uint64_t sequence = 0;
    std::vector<std::optional<Call>> calls;
  };
  [[nodiscard]] std::optional<Apart> first_divergence();

 private:
  struct alignas(64) Cursor {
    std::shared_ptr<Meeting> last;
    std::uint64_t next_sequence = 0;
  };
  Meeting* append(const EngineGroup& group, const Cursor& cursor, const MeetingOptions& options);

  const Connection& connection_;
  std::vector<Cursor> cursors_;  // by group rank; each is used by its member's thread only
  Mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Meeting>> open_ ACCEL_GUARDED_BY(mutex_);
  std::optional<Apart> first_divergence_ ACCEL_GUARDED_BY(mutex_);
};

/// The sends and receives of one group that have no match yet.
///
/// Thread rule: any thread.
class Mailbox {
 public:
  struct Posted {  // one end of a message
    std::shared_ptr<Meeting> meeting;
    int source = -1, destination = -1, tag = 0;
    double posted_at = 0;  // virtual seconds of its rank
    Call call;
    Participant participant;
    Deliver deliver;
  };
  explicit Mailbox(const Connection& connection) : connection_(connection) {}

  /// For sends that end when their receive is posted, or when fewer than `capacity` other messages of their channel
  /// wait for receives. Both return the meetings of sends that end now.
  struct Channel {
    int source = -1, destination = -1;
    auto operator<=>(const Channel&) const = default;
  };
  /// Empty if the connection is broken, and the send must fail.
  [[nodiscard]] std::optional<Meetings> add_send(Channel channel, const std::shared_ptr<Meeting>& meeting,
                                                 int capacity);
  [[nodiscard]] Meetings add_receive_of(Channel channel, const std::shared_ptr<Meeting>& send, int capacity);

  /// Counts a message and returns how many were sent (or received) between these ranks before it.
  std::uint64_t count(bool sends, int source, int destination);
  /// Removes and returns the receive that matches `send`. If there is none, stores the send and returns null.
  std::optional<Posted> take_receive_or_keep(Posted& send);
  /// Moves the send that matches `receive` to `send`, from the lowest rank if several match; stores the receive
  /// if none does. Returns false if the connection is broken; throws if the run has failed.
  [[nodiscard]] bool take_send_or_keep(Posted& receive, std::optional<Posted>& send);
  [[nodiscard]] Meetings open();

 private:
  const Connection& connection_;
  Mutex mutex_;
  std::deque<Posted> sends_ ACCEL_GUARDED_BY(mutex_);
  std::deque<Posted> receives_ ACCEL_GUARDED_BY(mutex_);
  struct Sends {  // without a receive
    int num_ended = 0;
    std::deque<std::shared_ptr<Meeting>> waiting;
  };
  std::map<Channel, Sends> unreceived_ ACCEL_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, std::uint64_t> num_sends_ ACCEL_GUARDED_BY(mutex_);     // by source and destination
  std::map<std::pair<int, int>, std::uint64_t> num_receives_ ACCEL_GUARDED_BY(mutex_);  // source -1: from any rank
};

/// The communication state of one group.
struct GroupState {
  GroupState(std::size_t num_members, const FailureRecord& failures);
  [[nodiscard]] Meetings open_meetings();

  Connection connection;
  CollectiveChain collectives;
  Mailbox messages;
};

/// Returns an already ended meeting with the connection's error, for a call in a group whose connection is broken.
std::shared_ptr<Meeting> failed_meeting(const EngineGroup& group, Call call);

/// The groups of a world, by name.
///
/// Thread rule: any thread. Collectives do not lock the mutex.
class GroupRegistry {
 public:
  explicit GroupRegistry(const FailureRecord& failures) : failures_(failures) {}

  /// Returns the group of this name and creates it on first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<EngineGroup> group(const std::string& name, const std::vector<int>& ranks);
  [[nodiscard]] std::vector<std::shared_ptr<EngineGroup>> all();

 private:
  const FailureRecord& failures_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<EngineGroup>> groups_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
