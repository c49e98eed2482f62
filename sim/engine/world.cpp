#include "sim/engine/world.hpp"

#include <algorithm>

#include "sim/engine/futex.hpp"

namespace accel::sim {
namespace {

// What the others are told of a rank that has thrown.
std::exception_ptr released_by(int rank, const std::exception_ptr& error) {
  std::string message = "an exception";
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& exception) {
    message = exception.what();
  } catch (...) {
  }
  return std::make_exception_ptr(ReleasedError(fmt::format("rank {} failed: {}", rank, message)));
}

}  // namespace

World::World(WorldOptions options)
    : options_(std::move(options)),
      num_active_(options_.num_ranks),
      ranks_(std::clamp(options_.num_ranks, 0, kMaxRanks)) {
  check_config(options_.num_ranks >= 1 && options_.num_ranks <= kMaxRanks,
               "ranks: {} ranks cannot be simulated in one process; expected 1 to {}", options_.num_ranks, kMaxRanks);
  double last = 0;
  for (const auto& before : options_.times_before) last = std::max(last, before.now);
  for (std::size_t rank = 0; rank < options_.times_before.size(); ++rank) {
    ranks_[rank].times = options_.times_before[rank];
    ranks_[rank].times.now = last;
  }
  executor_ = make_executor();
  if (options_.schedule.kind != ScheduleKind::kParallel) {
    baton_ = std::make_unique<Baton>(options_.schedule, options_.num_ranks, [this] { on_quiescence(); });
  }
}

World::~World() = default;

std::shared_ptr<Group> World::group(const std::string& name, const std::vector<int>& ranks) {
  const MutexLock lock(mutex_);
  auto& group = groups_[name];
  if (!group) {
    group = std::make_shared<Group>();
    group->name = name;
    group->ranks = ranks;
    group->cursors = std::vector<Group::Cursor>(ranks.size());
    const auto before_the_first = std::make_shared<Meeting>();
    for (auto& cursor : group->cursors) cursor.last = before_the_first;
  }
  check_argument(group->ranks == ranks, "group {}: this rank gives {} as members, another gave {}; all must agree",
                 name, describe_ranks(ranks), describe_ranks(group->ranks));
  return group;
}

std::shared_ptr<Meeting> World::next_meeting(Group& group, int group_rank) {
  auto& cursor = group.cursors[group_rank];
  auto* next = cursor.last->next_.load(std::memory_order_acquire);
  if (next == nullptr) {
    const MutexLock lock(group.mutex);
    throw_if_failed();
    next = cursor.last->next_.load(std::memory_order_relaxed);
    if (next == nullptr && group.is_disconnected) return nullptr;
    if (next == nullptr) {
      const auto size = group.ranks.size();
      auto meeting = std::make_shared<Meeting>();
      meeting->group_ = &group;
      meeting->sequence_ = cursor.next_sequence;
      meeting->deadline_ = std::chrono::steady_clock::now() + options_.timeout;
      meeting->calls_.resize(size);
      meeting->participants_.resize(size);
      meeting->has_arrived_ = std::vector<std::atomic<bool>>(size);
      if (keeps_time()) meeting->ready_.resize(size);
      next = meeting.get();
      group.open.emplace(cursor.next_sequence, std::move(meeting));
      cursor.last->next_.store(next, std::memory_order_release);
    }
  }
  ++cursor.next_sequence;
  return cursor.last = next->shared_from_this();
}

// Of one rank's call that meets no others at its place in the group.
std::shared_ptr<Meeting> World::lone_meeting(Group& group, Call call) {
  auto meeting = std::make_shared<Meeting>();
  meeting->group_ = &group;
  meeting->calls_ = {std::move(call)};
  meeting->has_arrived_ = std::vector<std::atomic<bool>>(1);
  meeting->has_arrived_[0] = true;
  return meeting;
}

std::shared_ptr<Meeting> World::failed_meeting(Group& group, Call call) {
  auto meeting = lone_meeting(group, std::move(call));
  {
    const MutexLock lock(group.mutex);
    meeting->rank_errors_ = group.disconnected;
  }
  meeting->state_ = Meeting::kEnded;
  return meeting;
}

std::shared_ptr<Meeting> World::arrive(Group& group, int group_rank, Call call, Participant participant,
                                       Compute compute) {
  const int rank = group.ranks[group_rank];
  if (baton_) baton_->yield(rank);
  end_compute(rank);
  throw_if_failed();
  const auto sequence = group.cursors[group_rank].next_sequence;
  if (options_.faults) options_.faults->before_call(*this, rank, group, sequence, call);
  set_whereabouts(
      rank, {.op = call.op, .group = &group, .sequence = static_cast<std::int64_t>(sequence), .where = call.where});
  log_event("arrive", rank, call.op, &group, static_cast<std::int64_t>(sequence));
  if (group.is_disconnected) return failed_meeting(group, std::move(call));

  auto meeting = next_meeting(group, group_rank);
  if (!meeting) return failed_meeting(group, std::move(call));  // the group has been disconnected meanwhile
  meeting->calls_[group_rank] = std::move(call);
  meeting->participants_[group_rank] = std::move(participant);
  if (keeps_time()) meeting->ready_[group_rank] = is_virtual() ? now(rank) : wall_now();
  meeting->has_arrived_[group_rank].store(true, std::memory_order_release);
  const bool is_last =
      meeting->num_arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<int>(group.ranks.size());
  if (is_last) complete(group, meeting, rank, compute);
  begin_compute(rank);
  return meeting;
}

// Every member has arrived and only this one acts: the slots are its own from here on.
void World::complete(Group& group, const std::shared_ptr<Meeting>& meeting, int rank, const Compute& compute) {
  const auto& first = *meeting->calls_.front();
  const auto& calls = meeting->calls_;
  const bool all_agree = std::all_of(calls.begin(), calls.end(), [&](const auto& call) { return agree(*call, first); });
  {
    const MutexLock lock(group.mutex);
    group.open.erase(meeting->sequence_);
    const bool one_place =
        std::all_of(calls.begin(), calls.end(), [&](const auto& call) { return same_place(call->where, first.where); });
    if (!one_place && !group.first_apart) group.first_apart = {meeting->sequence_, calls};
  }
  meeting->last_to_arrive_ = rank;
  if (!all_agree) {
    auto error = std::make_exception_ptr(DiagnosedError(diagnose_difference(*meeting)));
    fail(error);  // before the others wake: they leave, and the first failure is the run's
    end(*meeting, error);
    return;
  }
  MeetingFaults faults;
  try {
    if (options_.faults) faults = options_.faults->on_meeting(*this, group, meeting->sequence_, first);
    if (!faults.is_lost && !faults.error) set_finish_times(group, *meeting, faults);
  } catch (...) {
    const auto error = std::current_exception();  // of a model, not of the program: for all
    fail(error);
    return end(*meeting, error);
  }
  if (faults.is_lost || faults.error) {
    if (faults.error) {
      end(*meeting, nullptr, faults.error);
    } else {
      const MutexLock lock(mutex_);
      hangs_.push_back(meeting);  // it ends when no rank can go on
    }
    return;
  }
  const auto corrupt = [&](bool before) {
    for (const auto& corruption : faults.corruptions) {
      if (corruption.value.has_value() == before)
        options_.corrupt(meeting->participants_[corruption.member], corruption);
    }
  };
  std::exception_ptr error;
  try {
    corrupt(/*before=*/true);
    compute(meeting->participants_);
    corrupt(/*before=*/false);
  } catch (...) {
    error = std::current_exception();
  }
  if (keeps_time()) count_volume(*meeting);
  log_event("complete", rank, first.op, &group, static_cast<std::int64_t>(meeting->sequence_));
  end(*meeting, error);
  meeting->participants_.clear();  // buffers are not kept longer than the collective
}

void World::wait(int rank, Meeting& meeting) {
  end_compute(rank);
  const Span::Interval waited{.begin = now(rank)};
  const double wall_begin = keeps_time() ? wall_now() : 0;
  if (meeting.has_ended()) {
    if (baton_) baton_->yield(rank);
  } else {
    const auto* call = meeting.is_message_ ? nullptr : meeting.any_call();
    log_event("wait", rank, call != nullptr ? call->op : Collective::kRecv, meeting.group_,
              meeting.is_message_ ? -1 : static_cast<std::int64_t>(meeting.sequence_));
    block(rank, meeting);
    log_event("go_on", rank);
  }
  if (auto error = meeting.error(rank)) std::rethrow_exception(error);
  record_wait(rank, meeting, waited, wall_begin);
  begin_compute(rank);
}

bool World::poll(int rank, const Meeting& meeting) {
  if (!meeting.has_ended() && baton_) baton_->poll(rank);
  return meeting.has_ended();
}

void World::block(int rank, Meeting& meeting) {
  {
    const MutexLock lock(ranks_[rank].mutex);
    ranks_[rank].blocked_on = &meeting;
  }
  if (meeting.is_message_) meeting.deadline_ = std::chrono::steady_clock::now() + options_.timeout;
  if (baton_) {
    while (!meeting.has_ended()) baton_->block(rank);
  } else {
    // A waiter of an ended meeting counts for nothing: who ended it has read the number of waiters.
    if ((meeting.state_.fetch_add(Meeting::kOneWaiter, std::memory_order_acq_rel) & Meeting::kEnded) == 0) {
      if (num_active_.fetch_sub(1) == 1) on_quiescence();
      for (auto state = meeting.state_.load(std::memory_order_acquire); (state & Meeting::kEnded) == 0;
           state = meeting.state_.load(std::memory_order_acquire)) {
        sleep_while(meeting.state_, state);
      }
    }
  }
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].blocked_on = nullptr;
}

void World::end(Meeting& meeting, std::exception_ptr error, std::function<std::exception_ptr(int)> rank_errors) {
  if (meeting.is_claimed_.exchange(true)) return;
  meeting.error_ = error;
  meeting.rank_errors_ = rank_errors;
  if (keeps_time()) meeting.wall_end_ = wall_now();
  const auto shared = meeting.weak_from_this().lock();  // a waiter may drop the last other reference
  // Counted before they can run, so that the number of active ranks never falls to 0 while some are on their way.
  const int most = num_ranks();
  if (!baton_) num_active_.fetch_add(most);
  const int num_waiters =
      static_cast<int>(meeting.state_.fetch_or(Meeting::kEnded, std::memory_order_acq_rel) / Meeting::kOneWaiter);
  std::vector<OnEnd> on_end;
  {
    const MutexLock lock(meeting.mutex_);
    on_end.swap(meeting.on_end_);
  }
  // Before anybody wakes: a rank that waits for the meeting looks at its future next, and would sleep again.
  for (const auto& tell : on_end) tell(meeting.error(/*rank=*/-1));
  if (baton_) {
    for (const auto& [rank, blocked_on] : blocked_ranks()) {
      if (blocked_on == &meeting) baton_->wake(rank);
    }
  } else {
    if (num_waiters > 0) wake_all(meeting.state_);
    if (num_active_.fetch_sub(most - num_waiters) == most - num_waiters) on_quiescence();
  }
}

void World::when_ended(Meeting& meeting, OnEnd on_end) {
  {
    const MutexLock lock(meeting.mutex_);
    if (!meeting.has_ended()) {
      meeting.on_end_.push_back(std::move(on_end));
      return;
    }
  }
  on_end(meeting.error(/*rank=*/-1));
}

void World::begin(int rank) {
  if (baton_) baton_->begin(rank);
  log_event("begin", rank);
  begin_compute(rank);
}

void World::leave(int rank, std::exception_ptr error) {
  end_compute(rank);
  log_event("leave", rank);
  {
    const MutexLock lock(ranks_[rank].mutex);
    ranks_[rank].left = true;
  }
  if (error && may_be_faults_work()) {
    disconnect({rank}, [rank](int) { return connection_closed(rank); });  // as its peers see a process that ends
  } else if (error && !has_failed_) {
    fail(released_by(rank, error));
  }
  if (baton_) {
    baton_->leave(rank);
  } else if (num_active_.fetch_sub(1) == 1) {
    on_quiescence();
  }
}

void World::set_whereabouts(int rank, Whereabouts whereabouts) {
  const MutexLock lock(ranks_[rank].mutex);
  ranks_[rank].last = whereabouts;
}

void World::log_event(std::string_view what, int rank, std::optional<Collective> op, const Group* group,
                      std::int64_t sequence) {
  if (options_.logs_events)
    log_.append(
        {.what = what, .rank = rank, .op = op, .group = group != nullptr ? group->name : "", .sequence = sequence});
}

}  // namespace accel::sim
