#include "sim/engine/group_state.hpp"

#include <algorithm>

namespace accel::sim {

// The first break wins: its errors describe the original cause, and later breaks are usually consequences.
// `errors_` is set before the flag, so a rank that reads the flag without the lock finds the errors.
bool Connection::break_with(RankErrors errors) {
  const MutexLock lock(mutex_);
  if (is_broken_) return false;
  errors_ = std::move(errors);
  is_broken_ = true;
  return true;
}

RankErrors Connection::errors() {
  const MutexLock lock(mutex_);
  return errors_;
}

bool Connection::may_open_meeting() const {
  failures_.throw_if_failed();
  return !is_broken_;
}

CollectiveChain::CollectiveChain(std::size_t num_members, const Connection& connection)
    : connection_(connection), cursors_(num_members) {
  // All cursors start at one shared sentinel, so that the first collective is found like any other: by
  // following a link.
  const auto before_the_first = std::make_shared<Meeting>();
  for (auto& cursor : cursors_) cursor.last = before_the_first;
}

// Lock-free for all members but the first to arrive. The cursor keeps the last meeting alive and with it the
// link; the next one stays alive in `open_` until every member has joined it.
std::shared_ptr<Meeting> CollectiveChain::next(const EngineGroup& group, int member, const MeetingOptions& options) {
  auto& cursor = cursors_[member];
  auto* next = cursor.last->next();
  if (next == nullptr) next = append(group, cursor, options);
  if (next == nullptr) return nullptr;
  ++cursor.next_sequence;
  return cursor.last = next->shared_from_this();
}

// Two members may get here at the same time, so the link is read again under the mutex. A meeting that another
// member opened before the connection broke is still joined: it has been, or will be, ended by whoever broke
// the connection.
Meeting* CollectiveChain::append(const EngineGroup& group, const Cursor& cursor, const MeetingOptions& options) {
  const MutexLock lock(mutex_);
  const bool is_admitted = connection_.may_open_meeting();
  if (auto* made_meanwhile = cursor.last->next()) return made_meanwhile;
  if (!is_admitted) return nullptr;
  auto meeting = std::make_shared<Meeting>(group, cursor.next_sequence, options.keeps_time);
  meeting->set_deadline(std::chrono::steady_clock::now() + options.timeout);
  auto* next = meeting.get();
  open_.emplace(cursor.next_sequence, std::move(meeting));
  cursor.last->set_next(next);
  return next;
}

// Called once all members have arrived, so all calls are present. Calls that agree but come from different
// source lines are legal; the first such place is kept because it usually explains a later hang.
void CollectiveChain::close(const Meeting& meeting) {
  const auto& calls = meeting.calls();
  const MutexLock lock(mutex_);
  open_.erase(meeting.sequence());
  const bool one_place = std::all_of(calls.begin(), calls.end(), [&](const auto& call) {
    return same_source_line(call->where, calls.front()->where);
  });
  if (!one_place && !first_divergence_) first_divergence_ = {meeting.sequence(), calls};
}

// A copy, so that the caller can end the meetings without the mutex.
Meetings CollectiveChain::open() {
  Meetings meetings;
  const MutexLock lock(mutex_);
  for (const auto& [sequence, meeting] : open_) meetings.push_back(meeting);
  return meetings;
}

std::optional<CollectiveChain::Apart> CollectiveChain::first_divergence() {
  const MutexLock lock(mutex_);
  return first_divergence_;
}

// Counted at the call, not at the match, so that numbers follow the order of the program.
std::uint64_t Mailbox::count(bool sends, int source, int destination) {
  const MutexLock lock(mutex_);
  return (sends ? num_sends_ : num_receives_)[{source, destination}]++;
}

std::optional<Meetings> Mailbox::add_send(Channel channel, const std::shared_ptr<Meeting>& meeting, int capacity) {
  const MutexLock lock(mutex_);
  if (!connection_.may_open_meeting()) return std::nullopt;
  auto& sends = unreceived_[channel];
  if (sends.num_ended < capacity) {
    ++sends.num_ended;
    return Meetings{meeting};
  }
  sends.waiting.push_back(meeting);
  return Meetings{};
}

Meetings Mailbox::add_receive_of(Channel channel, const std::shared_ptr<Meeting>& send, int capacity) {
  const MutexLock lock(mutex_);
  auto& [num_ended, waiting] = unreceived_[channel];
  Meetings ended;
  const auto own = std::find(waiting.begin(), waiting.end(), send);
  if (own == waiting.end()) {
    --num_ended;
  } else {
    ended.push_back(*own);
    waiting.erase(own);
  }
  while (num_ended < capacity && !waiting.empty()) {
    ++num_ended;
    ended.push_back(waiting.front());
    waiting.pop_front();
  }
  return ended;
}

// Matches by destination, tag and source; the first posted receive wins, as in Gloo. Does not call `may_open_meeting`:
// the meeting of a send has ended, or add_send has called it.
std::optional<Mailbox::Posted> Mailbox::take_receive_or_keep(Posted& send) {
  const MutexLock lock(mutex_);
  const auto match = std::find_if(receives_.begin(), receives_.end(), [&](const auto& posted) {
    return posted.destination == send.destination && posted.tag == send.tag &&
           (posted.source == send.source || posted.source < 0);
  });
  if (match == receives_.end()) {
    sends_.push_back(std::move(send));
    return std::nullopt;
  }
  std::optional<Posted> receive = std::move(*match);
  receives_.erase(match);
  return receive;
}

// A receive from any source scans all sends and takes the lowest source, not the oldest send: the result then
// does not depend on the order in which threads happened to send.
bool Mailbox::take_send_or_keep(Posted& receive, std::optional<Posted>& send) {
  const MutexLock lock(mutex_);
  if (!connection_.may_open_meeting()) return false;
  auto match = sends_.end();
  for (auto posted = sends_.begin(); posted != sends_.end(); ++posted) {
    if (posted->destination != receive.destination || posted->tag != receive.tag) continue;
    if (receive.source >= 0 && posted->source != receive.source) continue;
    if (match == sends_.end() || posted->source < match->source) match = posted;
  }
  if (match == sends_.end()) {
    receives_.push_back(std::move(receive));
    return true;
  }
  send = std::move(*match);
  sends_.erase(match);
  return true;
}

// The meeting of a send that does not wait has ended before it is stored.
Meetings Mailbox::open() {
  Meetings meetings;
  const MutexLock lock(mutex_);
  for (const auto& posted : receives_) meetings.push_back(posted.meeting);
  for (const auto& [channel, sends] : unreceived_)
    meetings.insert(meetings.end(), sends.waiting.begin(), sends.waiting.end());
  return meetings;
}

GroupState::GroupState(std::size_t num_members, const FailureRecord& failures)
    : connection(failures), collectives(num_members, connection), messages(connection) {}

Meetings GroupState::open_meetings() {
  auto meetings = collectives.open();
  for (auto& receive : messages.open()) meetings.push_back(std::move(receive));
  return meetings;
}

// An ended meeting instead of an exception: the caller gets its error from `wait()`, as with Gloo's
// asynchronous calls.
std::shared_ptr<Meeting> failed_meeting(const EngineGroup& group, Call call) {
  auto meeting = std::make_shared<Meeting>(group, std::move(call));
  meeting->complete_immediately(group.state->connection.errors());
  return meeting;
}

// Ranks create the same group one after the other; the first defines its members, the others must agree.
std::shared_ptr<EngineGroup> GroupRegistry::group(const std::string& name, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  auto& group = groups_[name];
  if (!group) {
    group = std::make_shared<EngineGroup>(
        EngineGroup{.name = name, .ranks = ranks, .state = std::make_shared<GroupState>(ranks.size(), failures_)});
  }
  check_argument(group->ranks == ranks,
                 "group {}: this rank passed {} as members, another rank passed {}; pass the same list on every rank",
                 name, describe_ranks(ranks), describe_ranks(group->ranks));
  return group;
}

// In the order of their names, so that diagnoses list groups in the same order in every run.
std::vector<std::shared_ptr<EngineGroup>> GroupRegistry::all() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<EngineGroup>> groups;
  for (const auto& [name, group] : groups_) groups.push_back(group);
  return groups;
}

}  // namespace accel::sim
