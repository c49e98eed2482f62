// Note [Two clocks]
// With a network model (`finish_times`) a rank's clock is virtual: it advances by its thread's processor time
// times a factor, or by the operator table, and a collective moves it to the finish time that the model
// computes. Without one, times are wall-clock readings and compute is the thread's processor time. Processor
// time, not wall time, measures compute because ranks share few cores: the wall time of a rank includes the
// time that other ranks ran.
#include "sim/engine/rank_clocks.hpp"

#include <time.h>

#include <algorithm>
#include <thread>

#include "sim/engine/scheduling/rank_scheduler.hpp"

namespace accel::sim {
namespace {

// Returns the slot of `rank` in a meeting; a message has a single slot.
std::size_t slot_of(int rank, const Meeting& meeting) {
  return meeting.is_message() ? 0 : meeting.group().group_rank_of(rank);
}

}  // namespace

// Ranks measure themselves, and intra-op threads do not exist (one per rank).
double thread_processor_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

RankClocks::RankClocks(const WorldOptions& options, RankScheduler& scheduler)
    : options_(options), scheduler_(scheduler), ranks_(options.num_ranks) {
  // A restarted run continues on one common time line: all ranks start at the latest clock of the previous
  // attempt, because a launcher restarts all of them together.
  double last = 0;
  for (const auto& before : options_.times_before) last = std::max(last, before.now);
  for (std::size_t rank = 0; rank < options_.times_before.size(); ++rank) {
    ranks_[rank].times = options_.times_before[rank];
    ranks_[rank].times.now = last;
  }
}

double RankClocks::wall_now() const {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - options_.started).count();
}

double RankClocks::processor_seconds(int rank) const {
  return options_.processor_seconds ? options_.processor_seconds(rank) : thread_processor_seconds();
}

void RankClocks::begin_compute(int rank) {
  if (!options_.keeps_time()) return;
  ranks_[rank].cpu_mark = processor_seconds(rank);
  ranks_[rank].wall_mark = wall_now();
}

// Called at the start of every call into the engine. The order matters: a fault's extra time is computed from
// the compute just recorded, and begin_compute resets the marks, so that the engine's own work is not counted.
void RankClocks::end_compute(int rank) {
  if (!options_.keeps_time()) return;
  auto& own = ranks_[rank];
  const double spent = processor_seconds(rank) - own.cpu_mark;
  const double begin = own.times.now;
  if (options_.is_virtual()) own.times.now += spent * options_.cpu_factor + std::exchange(own.advanced, 0.0);
  const double seconds = options_.is_virtual() ? own.times.now - begin : spent;
  own.times.compute += seconds;
  if (options_.records_spans && seconds > 0) {
    own.times.spans.push_back({.kind = Span::Kind::kCompute,
                               .name = own.phase,
                               .virtual_time = {begin, own.times.now},
                               .wall_time = {own.wall_mark, wall_now()}});
  }
  // Inside the compute interval, so that a slow rank is late for the call that follows.
  if (options_.faults) {
    if (const double lost = options_.faults->lost_seconds(rank, seconds); lost > 0) delay(rank, lost, "slow");
  }
  begin_compute(rank);
}

// Ends the current interval first: its span must carry the phase in which the time was spent.
std::string_view RankClocks::enter_phase(int rank, std::string_view phase) {
  if (!options_.keeps_time()) return ranks_[rank].phase;
  end_compute(rank);
  return std::exchange(ranks_[rank].phase, phase);
}

// Keeps a copy of the totals per optimizer step; reports subtract neighbours to get the times of one step.
void RankClocks::end_update(int rank) {
  if (!options_.keeps_time()) return;
  auto& times = ranks_[rank].times;
  if (!options_.is_virtual()) times.now = wall_now();
  times.updates.push_back(times);
}

// On the virtual clock a delay is added; on the wall clock it is slept. In a serial schedule without a virtual
// clock it only decides the order: the rank is postponed. Otherwise the delayed rank counts as computing,
// because the others wait for it as for a straggler.
void RankClocks::delay(int rank, double seconds, std::string_view name) {
  auto& own = ranks_[rank];
  const bool is_virtual = options_.is_virtual(), is_serial = scheduler_.is_serial();
  const double begin = own.times.now, wall_begin = wall_now();
  if (is_virtual) own.times.now += seconds;
  if (is_virtual || !is_serial) own.times.compute += seconds;  // it is busy, and the others wait for it
  if (is_serial) {
    scheduler_.postpone(rank);
  } else if (!is_virtual) {
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  }
  if (options_.records_spans) {
    own.times.spans.push_back({.kind = Span::Kind::kFault,
                               .name = name,
                               .virtual_time = {begin, own.times.now},
                               .wall_time = {wall_begin, wall_now()}});
  }
}

// Read when the rank joins: its compute interval has just ended, so this is the time of the call.
std::optional<double> RankClocks::ready(int rank) const {
  if (!options_.keeps_time()) return std::nullopt;
  return options_.is_virtual() ? now(rank) : wall_now();
}

RankClocks::Reading RankClocks::read(int rank) const {
  return {.now = now(rank), .wall = options_.keeps_time() ? wall_now() : 0};
}

// Writes other ranks' clocks without a lock: allowed only while all ranks are blocked or have left.
void RankClocks::advance_all(double seconds) {
  if (!options_.is_virtual()) return;
  for (auto& rank : ranks_) rank.times.now += seconds;
}

// Splits the wait at the moment when the last rank was ready: before it, this rank waited for stragglers; after
// it, for data. `clamp` covers ranks that called wait() after that moment.
void RankClocks::record_wait(int rank, const Meeting& meeting, const Reading& begin) {
  const bool is_virtual = options_.is_virtual();
  if (!options_.keeps_time() || !meeting.has_group() || (is_virtual && meeting.times.finish.empty())) return;
  auto& times = ranks_[rank].times;
  if (is_virtual) times.now = std::max(times.now, meeting.times.finish[slot_of(rank, meeting)]);
  const double from = is_virtual ? begin.now : begin.wall, to = is_virtual ? times.now : wall_now();
  const double late = std::clamp(meeting.times.last_ready, from, std::max(from, to));
  times.straggler_wait += late - from;
  times.exposed_communication += to - late;
  if (options_.records_spans) record_spans(rank, meeting, begin);
}

// Records two spans: the collective, and the part of it for which this rank waited. They differ when a
// collective overlaps with the backward pass. A message has no time of call on the sender's side, so its span
// begins at the receiver's wait.
void RankClocks::record_spans(int rank, const Meeting& meeting, const Reading& begin) {
  auto& times = ranks_[rank].times;
  const auto& of_meeting = meeting.times;
  const bool is_virtual = options_.is_virtual(), is_message = meeting.is_message();
  const auto slot = slot_of(rank, meeting);
  const auto& call = *meeting.calls()[slot];
  const double ready = is_virtual && !is_message ? of_meeting.ready[slot] : begin.now;
  const auto sequence = is_message ? -1 : static_cast<std::int64_t>(meeting.sequence());
  const double called = is_virtual || is_message ? std::min(begin.wall, of_meeting.wall_end)
                                                 : of_meeting.ready[slot];  // on the wall clock, if known
  times.spans.push_back({.kind = Span::Kind::kCollective,
                         .name = name_of(call.op),
                         .group = meeting.group().name,
                         .sequence = sequence,
                         .bytes = call.bytes,
                         .virtual_time = {ready, is_virtual ? of_meeting.finish[slot] : ready},
                         .wall_time = {called, of_meeting.wall_end}});
  times.spans.push_back({.kind = Span::Kind::kWait,
                         .name = name_of(call.op),
                         .group = meeting.group().name,
                         .sequence = sequence,
                         .released_by = of_meeting.last_to_arrive == rank ? -1 : of_meeting.last_to_arrive,
                         .virtual_time = {begin.now, times.now},
                         .wall_time = {begin.wall, wall_now()}});
}

}  // namespace accel::sim
