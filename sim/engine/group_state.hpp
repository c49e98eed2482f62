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

// Note [Meetings that nobody misses]
// Who fails a run or disconnects a group first says so (FailureRecord, Connection) and then collects the open meetings,
// each kind under its mutex. Who opens one asks `Connection::admits` under the same mutex. So an open meeting is either
// collected, or never made.
namespace accel::sim {

using Meetings = std::vector<std::shared_ptr<Meeting>>;

/// Whether the ranks of a group can still reach each other.
///
/// Thread rule: any thread.
class Connection {
 public:
  explicit Connection(const FailureRecord& failures) : failures_(failures) {}

  [[nodiscard]] bool is_broken() const { return is_broken_; }
  /// From here on every call in the group fails with these errors. False if it was broken before.
  bool break_with(RankErrors errors);
  [[nodiscard]] RankErrors errors();
  /// Whether a meeting may be opened. Throws if the run has failed. See Note [Meetings that nobody misses].
  [[nodiscard]] bool admits() const;

 private:
  const FailureRecord& failures_;
  Mutex mutex_;
  RankErrors errors_ ACCEL_GUARDED_BY(mutex_);
  std::atomic<bool> is_broken_{false};
};

// Note [Collective chain]
// The n-th call of every member of a group is one Meeting. Members walk a chain of them, each with a cursor of its own:
// whoever comes first appends the next, under the mutex; all others find it there without a lock.

/// The collectives of one group.
///
/// Thread rule: methods that name a member from its thread, the others from any.
class CollectiveChain {
 public:
  CollectiveChain(std::size_t num_members, const Connection& connection);

  struct MeetingOptions {
    std::chrono::milliseconds timeout;
    bool keeps_time = false;
  };
  /// The member's next collective; null if the connection is broken. Throws if the run has failed.
  std::shared_ptr<Meeting> next(const Group& group, int member, const MeetingOptions& options);
  /// How many collectives the member has joined.
  [[nodiscard]] std::uint64_t num_joined(int member) const { return cursors_[member].next_sequence; }

  /// All members have arrived.
  void close(const Meeting& meeting);
  [[nodiscard]] Meetings open();

  struct Apart {  // calls that agreed and came from different lines of the program
    std::uint64_t sequence = 0;
    std::vector<std::optional<Call>> calls;
  };
  [[nodiscard]] std::optional<Apart> first_apart();

 private:
  struct alignas(64) Cursor {
    std::shared_ptr<Meeting> last;
    std::uint64_t next_sequence = 0;
  };
  Meeting* append(const Group& group, const Cursor& cursor, const MeetingOptions& options);

  const Connection& connection_;
  std::vector<Cursor> cursors_;  // by group rank, each its member's own
  Mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Meeting>> open_ ACCEL_GUARDED_BY(mutex_);
  std::optional<Apart> first_apart_ ACCEL_GUARDED_BY(mutex_);
};

/// The messages of one group that wait for their other end.
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

  /// How many messages were sent from one rank to the other before this one, or received.
  std::uint64_t count(bool sends, int source, int destination);
  /// The receive that matches `send`, null if none does: then the send is kept.
  std::optional<Posted> take_receive_or_keep(Posted& send);
  /// Moves the send that matches `receive`, from the lowest rank, to `send`; if none does, the receive is kept. False
  /// if the connection is broken. Throws if the run has failed.
  [[nodiscard]] bool take_send_or_keep(Posted& receive, std::optional<Posted>& send);
  [[nodiscard]] Meetings open();

 private:
  const Connection& connection_;
  Mutex mutex_;
  std::deque<Posted> sends_ ACCEL_GUARDED_BY(mutex_);
  std::deque<Posted> receives_ ACCEL_GUARDED_BY(mutex_);
  std::map<std::pair<int, int>, std::uint64_t> num_sends_ ACCEL_GUARDED_BY(mutex_);     // by source and destination
  std::map<std::pair<int, int>, std::uint64_t> num_receives_ ACCEL_GUARDED_BY(mutex_);  // source -1: any
};

/// What the ranks of a group have under way.
struct GroupState {
  GroupState(std::size_t num_members, const FailureRecord& failures);
  [[nodiscard]] Meetings open_meetings();

  Connection connection;
  CollectiveChain collectives;
  Mailbox messages;
};

/// One rank's call in a group whose connection is broken: it has ended in its error.
std::shared_ptr<Meeting> failed_meeting(const Group& group, Call call);

/// The groups of a world, by name.
///
/// Thread rule: any thread. The mutex is not taken during a collective.
class GroupRegistry {
 public:
  explicit GroupRegistry(const FailureRecord& failures) : failures_(failures) {}

  /// The group of this name; made at its first use. Throws ArgumentError if ranks disagree on its members.
  std::shared_ptr<Group> group(const std::string& name, const std::vector<int>& ranks);
  [[nodiscard]] std::vector<std::shared_ptr<Group>> all();

 private:
  const FailureRecord& failures_;
  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Group>> groups_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace accel::sim
