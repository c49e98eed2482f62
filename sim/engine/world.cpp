#include "sim/engine/world.hpp"

#include <algorithm>

namespace accel::sim {
namespace {

// Calls that met but differ: who asked for what, the minority first, as the culprits.
Diagnosis diagnose_difference(const std::string& name, const Group& group, std::uint64_t sequence,
                              const std::vector<std::optional<Call>>& calls) {
  std::vector<std::pair<Call, std::vector<int>>> kinds;
  for (std::size_t member = 0; member < calls.size(); ++member) {
    auto same = std::find_if(kinds.begin(), kinds.end(), [&](auto& kind) { return kind.first == *calls[member]; });
    if (same == kinds.end()) same = kinds.insert(kinds.end(), {*calls[member], {}});
    same->second.push_back(group.ranks[member]);
  }
  std::stable_sort(kinds.begin(), kinds.end(), [](auto& a, auto& b) { return a.second.size() > b.second.size(); });
  const bool tie = kinds[0].second.size() == kinds[1].second.size();

  Diagnosis diagnosis{.kind = Diagnosis::Kind::kDesync, .op = std::string(kinds[0].first.op), .group = group.name,
                      .sequence = sequence};
  diagnosis.text = fmt::format("{}: the ranks' calls differ; expected one call, equal on every rank", name);
  for (std::size_t kind = 0; kind < kinds.size(); ++kind) {
    const auto& [call, ranks] = kinds[kind];
    diagnosis.text += fmt::format("\n  {}: {}", describe_ranks(ranks), describe(call));
    if (kind > 0 || tie) diagnosis.ranks.insert(diagnosis.ranks.end(), ranks.begin(), ranks.end());
  }
  std::sort(diagnosis.ranks.begin(), diagnosis.ranks.end());
  return diagnosis;
}

}  // namespace

std::string Meeting::name() const {
  const auto op = std::find_if(calls_.begin(), calls_.end(), [](const auto& call) { return call.has_value(); });
  const auto title = op == calls_.end() ? std::string("collective") : std::string((*op)->op);
  return is_message_ ? fmt::format("{} in group {}", title, group_->name)
                     : fmt::format("{} #{} of group {}", title, sequence_, group_->name);
}

World::World(WorldOptions options)
    : options_(options), blocked_(std::max(options.num_ranks, 0), nullptr), left_(std::max(options.num_ranks, 0), false),
      last_call_(std::max(options.num_ranks, 0)) {
  check_config(options.num_ranks >= 1 && options.num_ranks <= kMaxRanks,
               "ranks: {} ranks cannot be simulated in one process; expected 1 to {}", options.num_ranks, kMaxRanks);
  executor_ = make_executor();
}

std::shared_ptr<Group> World::group(const std::string& name, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  auto& group = groups_[name];
  if (!group) {
    group = std::make_shared<Group>();
    group->name = name;
    group->ranks = ranks;
    group->next_sequence.resize(ranks.size());
  }
  check_argument(group->ranks == ranks, "group {}: this rank gives {} as members, another gave {}; all must agree", name,
                 describe_ranks(ranks), describe_ranks(group->ranks));
  return group;
}

std::shared_ptr<Meeting> World::arrive(Group& group, int group_rank, Call call, Participant participant, Compute compute) {
  std::shared_ptr<Meeting> meeting;
  {
    const MutexLock lock(mutex_);
    throw_if_failed();
    const auto sequence = group.next_sequence[group_rank]++;
    auto& slot = group.open[sequence];
    if (!slot) {
      slot = std::make_shared<Meeting>();
      slot->group_ = &group;
      slot->sequence_ = sequence;
      slot->calls_.resize(group.ranks.size());
      slot->participants_.resize(group.ranks.size());
      slot->deadline_ = std::chrono::steady_clock::now() + options_.timeout;
    }
    meeting = slot;
    last_call_[group.ranks[group_rank]] = fmt::format("{} #{} of group {}", call.op, sequence, group.name);
    meeting->calls_[group_rank] = std::move(call);
    meeting->participants_[group_rank] = std::move(participant);
    if (++meeting->num_arrived_ < static_cast<int>(group.ranks.size())) return meeting;
    group.open.erase(sequence);
  }
  // Every member has arrived and only this one acts: calls_ and participants_ are its own from here on.
  const auto& calls = meeting->calls_;
  if (std::any_of(calls.begin(), calls.end(), [&](const auto& other) { return *other != *calls.front(); })) {
    auto error = std::make_exception_ptr(
        DiagnosedError(diagnose_difference(meeting->name(), group, meeting->sequence_, calls)));
    Ended ended;
    {
      const MutexLock lock(mutex_);
      mark_ended(*meeting, error);
      ended = fail(error);
      ended.emplace_back(meeting, std::exchange(meeting->on_end_, {}));
    }
    announce(ended, error);
    return meeting;
  }
  std::exception_ptr error;
  try {
    compute(meeting->participants_);
  } catch (...) {
    error = std::current_exception();
  }
  end(meeting, error);
  return meeting;
}

std::shared_ptr<Meeting> World::send(Group& group, int source, int destination, int tag, Call call, Participant participant) {
  std::optional<Group::Posted> receive;
  auto meeting = std::make_shared<Meeting>();
  {
    const MutexLock lock(mutex_);
    throw_if_failed();
    last_call_[group.ranks[source]] = fmt::format("send to rank {} of group {}", destination, group.name);
    meeting->group_ = &group;
    meeting->is_message_ = true;
    meeting->state_.store(Meeting::kEnded, std::memory_order_release);
    const auto match = std::find_if(group.receives.begin(), group.receives.end(), [&](const auto& posted) {
      return posted.destination == destination && posted.tag == tag && (posted.source == source || posted.source < 0);
    });
    if (match == group.receives.end()) {
      group.sends.push_back({nullptr, source, destination, tag, std::move(call), std::move(participant), nullptr});
      return meeting;
    }
    receive = std::move(*match);
    group.receives.erase(match);
  }
  receive->meeting->source_ = source;
  std::exception_ptr error;
  try {
    receive->deliver(participant, receive->participant);
  } catch (...) {
    error = std::current_exception();
  }
  end(receive->meeting, error);
  return meeting;
}

std::shared_ptr<Meeting> World::receive(Group& group, int source, int destination, int tag, Call call,
                                        Participant participant,
                                        std::function<void(const Participant&, const Participant&)> deliver) {
  auto meeting = std::make_shared<Meeting>();
  std::optional<Group::Posted> sent;
  {
    const MutexLock lock(mutex_);
    throw_if_failed();
    last_call_[group.ranks[destination]] =
        source < 0 ? fmt::format("recv from any rank of group {}", group.name)
                   : fmt::format("recv from rank {} of group {}", source, group.name);
    meeting->group_ = &group;
    meeting->is_message_ = true;
    meeting->calls_ = {call};
    meeting->deadline_ = std::chrono::steady_clock::now() + options_.timeout;
    auto match = group.sends.end();
    for (auto posted = group.sends.begin(); posted != group.sends.end(); ++posted) {
      if (posted->destination != destination || posted->tag != tag) continue;
      if (source >= 0 && posted->source != source) continue;
      if (match == group.sends.end() || posted->source < match->source) match = posted;
    }
    if (match == group.sends.end()) {
      group.receives.push_back({meeting, source, destination, tag, std::move(call), std::move(participant), std::move(deliver)});
      return meeting;
    }
    sent = std::move(*match);
    group.sends.erase(match);
  }
  meeting->source_ = sent->source;
  std::exception_ptr error;
  try {
    deliver(sent->participant, participant);
  } catch (...) {
    error = std::current_exception();
  }
  end(meeting, error);
  return meeting;
}

void World::wait(int rank, Meeting& meeting) {
  if (!meeting.has_ended()) {
    Ended ended;
    std::exception_ptr failure;
    {
      const MutexLock lock(mutex_);
      if (!meeting.has_ended()) {
        throw_if_failed();
        blocked_[rank] = &meeting;
        meeting.waiters_.push_back(rank);
        ++num_blocked_;
        ended = fail_if_quiescent();
        failure = failure_;
      }
    }
    announce(ended, failure);
    meeting.state_.wait(Meeting::kOpen, std::memory_order_acquire);
  }
  if (meeting.error_) std::rethrow_exception(meeting.error_);
}

void World::when_ended(Meeting& meeting, OnEnd on_end) {
  {
    const MutexLock lock(mutex_);
    if (!meeting.has_ended()) {
      meeting.on_end_.push_back(std::move(on_end));
      return;
    }
  }
  on_end(meeting.error_);
}

void World::leave(int rank, std::exception_ptr error) {
  Ended ended;
  std::exception_ptr failure;
  {
    const MutexLock lock(mutex_);
    left_[rank] = true;
    ++num_left_;
    if (error && !failure_) {
      std::string message = "an exception";
      try {
        std::rethrow_exception(error);
      } catch (const std::exception& exception) {
        message = exception.what();
      } catch (...) {
      }
      ended = fail(std::make_exception_ptr(ReleasedError(fmt::format("rank {} failed: {}", rank, message))));
    } else {
      ended = fail_if_quiescent();
    }
    failure = failure_;
  }
  announce(ended, failure);
}

void World::end(std::shared_ptr<Meeting> meeting, std::exception_ptr error) {
  std::vector<OnEnd> on_end;
  {
    const MutexLock lock(mutex_);
    if (meeting->has_ended()) return;  // failed meanwhile
    mark_ended(*meeting, error);
    on_end = std::exchange(meeting->on_end_, {});
  }
  meeting->state_.notify_all();
  for (const auto& tell : on_end) tell(error);
  // Buffers are not kept longer than the collective.
  meeting->participants_.clear();
}

void World::mark_ended(Meeting& meeting, std::exception_ptr error) {
  meeting.error_ = std::move(error);
  for (const int rank : meeting.waiters_) blocked_[rank] = nullptr;
  num_blocked_ -= static_cast<int>(meeting.waiters_.size());
  meeting.state_.store(Meeting::kEnded, std::memory_order_release);
}

World::Ended World::fail(std::exception_ptr error) {
  Ended ended;
  if (failure_) return ended;
  failure_ = error;
  const auto end_one = [&](const std::shared_ptr<Meeting>& meeting) ACCEL_REQUIRES(mutex_) {
    mark_ended(*meeting, error);
    ended.emplace_back(meeting, std::exchange(meeting->on_end_, {}));
  };
  for (auto& [name, group] : groups_) {
    for (auto& [sequence, meeting] : group->open) end_one(meeting);
    for (auto& posted : group->receives) end_one(posted.meeting);
    group->open.clear();
    group->receives.clear();
  }
  return ended;
}

void World::announce(const Ended& ended, const std::exception_ptr& error) {
  for (const auto& [meeting, on_end] : ended) {
    meeting->state_.notify_all();
    for (const auto& tell : on_end) tell(error);
  }
}

void World::throw_if_failed() {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace accel::sim
