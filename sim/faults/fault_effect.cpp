// The parts that all effects share: when a fault is due, and how a strike is recorded. A strike is recorded
// before its effect, so that a diagnosis made by another rank in the meantime can already name the fault.
#include "sim/faults/fault_effect.hpp"

#include <algorithm>

namespace accel::sim {

// Only for faults of one rank: `sequence` is this rank's count, which exists before the collective is joined.
bool FaultEffect::may_strike(World& world, int rank, std::uint64_t sequence) const {
  return fault_.rank && concerns(rank) && !has_struck_ && is_due(world, rank, sequence);
}

// Without a rank, or with `any` in a plan that was not drawn, a fault concerns every rank.
bool FaultEffect::concerns(int rank) const { return !fault_.rank || *fault_.rank == rank || *fault_.rank == kAnyRank; }

// "At N or later": an exact match could miss, for example when rank N makes no collective in step N.
bool FaultEffect::is_due(World& world, int rank, std::uint64_t sequence) const {
  if (!fault_.when) return true;
  return fault_.when->number <=
         (fault_.when->unit == When::Unit::kStep ? world.clocks().step(rank) : static_cast<std::int64_t>(sequence));
}

// `has_struck_` and the note change under one mutex: a rank that calls `blame` finds the strike recorded.
bool FaultEffect::strike(World& world, std::vector<int> ranks, bool may_stop, const FaultSite& site) {
  const MutexLock lock(run_.strike_mutex);
  if (has_struck_.exchange(true)) return false;
  std::sort(ranks.begin(), ranks.end());
  AppliedFault strike{.name = std::string(rule_of(fault_.kind).name),
                      .ranks = std::move(ranks),
                      .text = describe(fault_),
                      .may_stop = may_stop};
  if (site.call != nullptr) {
    strike.call = *site.call;
    strike.group = site.group->name;
    strike.sequence = site.sequence;
  }
  world.failures().note(std::move(strike));
  return true;
}

void FaultEffect::disconnect(World& world, int rank, double notice_seconds) {
  world.end_process(
      rank, [rank](int) { return connection_closed(rank); }, notice_seconds);
}

void FaultEffect::crash(World& world, int rank, const std::string& how, double notice_seconds) {
  disconnect(world, rank, notice_seconds);
  throw InjectedFault(how);
}

void FaultEffect::exceed_timeout(World& world, int rank) {
  {
    const MutexLock lock(run_.mutex);
    run_.late.push_back(rank);
  }
  world.hang(rank);
}

// The meeting stays open, so its ranks block; FaultInjector::on_quiescence turns that into time-outs.
void FaultEffect::lose(const std::vector<int>& receivers, MeetingFaults& faults) {
  const MutexLock lock(run_.mutex);
  run_.cut_off.insert(run_.cut_off.end(), receivers.begin(), receivers.end());
  faults.is_lost = true;
}

std::unique_ptr<FaultEffect> make_effect(const Fault& fault, FaultedRun& run) {
  switch (rule_of(fault.kind).target) {
    case FaultTarget::kRank: return make_rank_effect(fault, run);
    case FaultTarget::kCollective: return make_collective_effect(fault, run);
    case FaultTarget::kMessages: return make_message_effect(fault, run);
    case FaultTarget::kStorage: return make_storage_effect(fault, run);
  }
  throw InternalError("unknown target of a fault");
}

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

}  // namespace accel::sim
