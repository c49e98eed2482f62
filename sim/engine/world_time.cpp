// Time of ranks: virtual seconds by a model of costs, wall seconds as they are.
#include <time.h>

#include <algorithm>
#include <thread>

#include "sim/engine/world.hpp"

namespace accel::sim {
namespace {

double processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

double World::wall_now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - options_.started).count();
}

void World::begin_compute(int rank) {
  if (!keeps_time()) return;
  ranks_[rank].cpu_mark = processor_seconds();
  ranks_[rank].wall_mark = wall_now();
}

void World::end_compute(int rank) {
  if (!keeps_time()) return;
  auto& own = ranks_[rank];
  const double spent = processor_seconds() - own.cpu_mark;
  const double begin = own.times.now;
  if (is_virtual()) own.times.now += spent * options_.cpu_factor + std::exchange(own.advanced, 0.0);
  const double seconds = is_virtual() ? own.times.now - begin : spent;
  own.times.compute += seconds;
  if (options_.records_spans && seconds > 0) {
    own.times.spans.push_back({.kind = Span::Kind::kCompute,
                               .name = own.phase,
                               .virtual_time = {begin, own.times.now},
                               .wall_time = {own.wall_mark, wall_now()}});
  }
  if (options_.faults) {
    if (const double lost = options_.faults->lost_seconds(rank, seconds); lost > 0) delay(rank, lost, "slow");
  }
  begin_compute(rank);
}

void World::leave_out(int rank) { begin_compute(rank); }

std::string_view World::enter_phase(int rank, std::string_view phase) {
  if (!keeps_time()) return ranks_[rank].phase;
  end_compute(rank);
  return std::exchange(ranks_[rank].phase, phase);
}

void World::reach(int rank, StepPoint point) {
  if (point == StepPoint::kBackward) ++ranks_[rank].step;
  end_compute(rank);
  throw_if_failed();
  if (point == StepPoint::kUpdated) {
    if (!keeps_time()) return;
    auto& times = ranks_[rank].times;
    if (!is_virtual()) times.now = wall_now();
    times.updates.push_back(times);
    return;
  }
  if (options_.faults) options_.faults->at_point(*this, rank, point, ranks_[rank].step);
}

void World::advance(int rank, double seconds) { ranks_[rank].advanced += seconds; }

void World::delay(int rank, double seconds, std::string_view name) {
  auto& own = ranks_[rank];
  const double begin = own.times.now, wall_begin = wall_now();
  if (is_virtual()) own.times.now += seconds;
  if (is_virtual() || !baton_) own.times.compute += seconds;  // it is busy, and the others wait for it
  if (baton_) {
    baton_->postpone(rank);
  } else if (!is_virtual()) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  if (options_.records_spans) {
    own.times.spans.push_back({.kind = Span::Kind::kFault,
                               .name = name,
                               .virtual_time = {begin, own.times.now},
                               .wall_time = {wall_begin, wall_now()}});
  }
}

void World::set_finish_times(const Group& group, Meeting& meeting, const MeetingFaults& faults) {
  if (!is_virtual()) {
    double longest = 0;
    for (const double delay : faults.delays) longest = std::max(longest, delay);
    if (longest > 0 && !baton_) std::this_thread::sleep_for(std::chrono::duration<double>(longest));
    if (keeps_time()) meeting.last_ready_ = wall_now();
    return;
  }
  for (std::size_t member = 0; member < faults.delays.size(); ++member) meeting.ready_[member] += faults.delays[member];
  const auto latest = std::max_element(meeting.ready_.begin(), meeting.ready_.end());
  meeting.last_ready_ = *latest;
  meeting.last_to_arrive_ = group.ranks[latest - meeting.ready_.begin()];
  meeting.finish_ = options_.finish_times(group, *meeting.calls_.front(), meeting.ready_);
}

void World::count_volume(const Meeting& meeting) {
  const double finished = is_virtual() ? *std::max_element(meeting.finish_.begin(), meeting.finish_.end()) : wall_now();
  const MutexLock lock(mutex_);
  auto& volume = volumes_[std::string(name_of(meeting.calls_.front()->op))];
  ++volume.calls;
  for (const auto& call : meeting.calls_) volume.bytes += call->bytes;
  volume.seconds += finished - meeting.last_ready_;
}

void World::record_wait(int rank, const Meeting& meeting, const Span::Interval& waited, double wall_begin) {
  if (!keeps_time() || meeting.group_ == nullptr || (is_virtual() && meeting.finish_.empty())) return;
  auto& times = ranks_[rank].times;
  const auto member = meeting.is_message_ ? 0 : meeting.group_->group_rank_of(rank);
  if (is_virtual()) times.now = std::max(times.now, meeting.finish_[member]);
  const double begin = is_virtual() ? waited.begin : wall_begin, end = is_virtual() ? times.now : wall_now();
  const double late = std::clamp(meeting.last_ready_, begin, std::max(begin, end));
  times.straggler_wait += late - begin;
  times.exposed_communication += end - late;
  if (!options_.records_spans) return;
  const auto& call = *meeting.calls_[meeting.is_message_ ? 0 : member];
  const double ready = is_virtual() && !meeting.is_message_ ? meeting.ready_[member] : waited.begin;
  const auto sequence = meeting.is_message_ ? -1 : static_cast<std::int64_t>(meeting.sequence_);
  const double called = is_virtual() || meeting.is_message_ ? std::min(wall_begin, meeting.wall_end_)
                                                            : meeting.ready_[member];  // on the wall's clock, if known
  times.spans.push_back({.kind = Span::Kind::kCollective,
                         .name = name_of(call.op),
                         .group = meeting.group_->name,
                         .sequence = sequence,
                         .bytes = call.bytes,
                         .virtual_time = {ready, is_virtual() ? meeting.finish_[member] : ready},
                         .wall_time = {called, meeting.wall_end_}});
  times.spans.push_back({.kind = Span::Kind::kWait,
                         .name = name_of(call.op),
                         .group = meeting.group_->name,
                         .sequence = sequence,
                         .released_by = meeting.last_to_arrive_ == rank ? -1 : meeting.last_to_arrive_,
                         .virtual_time = {waited.begin, times.now},
                         .wall_time = {wall_begin, wall_now()}});
}

std::map<std::string, Volume> World::volumes() {
  const MutexLock lock(mutex_);
  return volumes_;
}

}  // namespace accel::sim
