// Forwards the engine's hooks to the effects in the order of the plan, so that a file with several faults acts
// the same in every run. The two things that need all effects are here: the files of a rank, and what ranks see
// when none can continue.
#include "sim/faults/fault_injector.hpp"

#include <algorithm>

#include "sim/collectives/collective_plan.hpp"
#include "sim/engine/world.hpp"
#include "sim/faults/faulty_files.hpp"

namespace accel::sim {

FaultInjector::FaultInjector(std::vector<Fault> plan, FaultInjectorOptions options)
    : plan_(std::move(plan)), run_{.options = options} {
  for (const auto& fault : plan_) effects_.push_back(make_effect(fault, run_));
}

// Read after the run, when no rank can strike any more.
std::vector<std::string> FaultInjector::not_struck() const {
  std::vector<std::string> faults;
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    if (!effects_[index]->has_struck()) faults.push_back(describe(plan_[index]));
  }
  return faults;
}

// An effect may throw (a crash); later effects of the plan then do not see this call, as in a real process.
void FaultInjector::before_call(World& world, int rank, const EngineGroup& group, std::uint64_t sequence, Call& call) {
  const FaultSite site{&call, &group, sequence};
  for (const auto& effect : effects_) {
    if (!effect->may_strike(world, rank, sequence)) continue;
    effect->before_call(world, rank, site);
    effect->before_collective(world, rank, site, call);
  }
}

void FaultInjector::before_message(World& world, int rank, const EngineGroup& group, std::uint64_t sequence,
                                   const Call& call) {
  for (const auto& effect : effects_) {
    if (effect->may_strike(world, rank, sequence)) effect->before_call(world, rank, {&call, &group, sequence});
  }
}

// Links are those of Gloo's algorithm for this collective, whatever the network file describes.
MeetingFaults FaultInjector::on_meeting(World& world, const EngineGroup& group, std::uint64_t sequence,
                                        const Call& call) {
  const auto visit_links = [&, size = static_cast<int>(group.ranks.size())](const auto& visit) {
    for_each_link(call.op, size, call.root, visit);
  };
  Traffic traffic{world, {&call, &group, sequence}, visit_links, group.ranks.front()};
  for (const auto& effect : effects_) {
    effect->on_meeting(world, traffic.site, traffic.faults);
    effect->on_traffic(traffic);
  }
  return std::move(traffic.faults);
}

MeetingFaults FaultInjector::on_message(World& world, const EngineGroup& group, int source, int destination,
                                        std::uint64_t sequence, const Call& call) {
  const auto visit_links = [=](const auto& visit) { visit(source, destination); };
  Traffic traffic{world, {&call, &group, sequence}, visit_links, group.ranks[destination]};
  for (const auto& effect : effects_) effect->on_traffic(traffic);
  return std::move(traffic.faults);
}

// Ranks without the fault are skipped here once for all effects.
void FaultInjector::at_point(World& world, int rank, StepPoint point, std::int64_t step) {
  for (const auto& effect : effects_) {
    if (effect->concerns(rank)) effect->at_point(world, rank, point, step);
  }
}

double FaultInjector::lost_seconds(int rank, double computed_seconds) {
  double lost = 0;
  for (const auto& effect : effects_) lost += effect->lost_seconds(rank, computed_seconds);
  return lost;
}

void FaultInjector::on_rendezvous(World& world, int rank) {
  for (const auto& effect : effects_) {
    if (effect->concerns(rank)) effect->on_rendezvous(world, rank);
  }
}

// A restarted process does not die of the same torn write again: the fault has struck.
std::vector<Fault> FaultInjector::remaining_file_faults(int rank) const {
  std::vector<Fault> left;
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    const bool is_over = plan_[index].kind == FaultKind::kTornWrite && effects_[index]->has_struck();
    if (plan_[index].rank == rank && !is_over) left.push_back(plan_[index]);
  }
  return left;
}

std::shared_ptr<Files> FaultInjector::files(World& world, int rank, std::shared_ptr<Files> disk) {
  // The returned pointer shares ownership of both the wrapper and the disk below it.
  struct RankFiles {
    std::shared_ptr<Files> disk;
    FaultyFiles files;
  };
  const auto on_strike = [this, &world, rank](const Fault& fault) {
    effects_[std::find(plan_.begin(), plan_.end(), fault) - plan_.begin()]->on_file_fault(world, rank);
  };
  auto own = std::make_shared<RankFiles>(disk, FaultyFiles(*disk, remaining_file_faults(rank), rank, on_strike));
  return {own, &own->files};
}

// Ranks that wait for a lost message time out and close their connections; all others see closed connections.
// If a rank hangs, all others wait for it and time out. The virtual clocks advance by the time-out, because
// that is how long real ranks would wait.
bool FaultInjector::on_quiescence(World& world) {
  const auto hanging = world.hanging();
  std::vector<int> cut_off, late;
  {
    const MutexLock lock(run_.mutex);
    cut_off.swap(run_.cut_off);
    std::sort(cut_off.begin(), cut_off.end());  // independent of the order of threads
    late.swap(run_.late);
  }
  if (hanging.empty() && cut_off.empty()) return false;
  const auto contains = [](const std::vector<int>& ranks, int rank) {
    return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
  };
  const auto timed_out = std::make_exception_ptr(
      GlooError(fmt::format("Timed out waiting {}ms for recv operation to complete", world.timeout().count())));
  world.time_out(seconds_of(world.timeout()), [=, num_ranks = world.num_ranks()](int rank) {
    if (contains(late, rank)) return connection_closed((rank + 1) % num_ranks);
    if (contains(hanging, rank)) return std::make_exception_ptr(InjectedFault("injected hang, ended with the run"));
    return hanging.empty() && !contains(cut_off, rank) ? connection_closed(cut_off.front()) : timed_out;
  });
  return true;
}

// The joins of a rank in the order of the plan, one for each end.
std::optional<FaultModel::ProcessStart> FaultInjector::next_start(int rank) {
  const auto index = index_of_start(rank);
  if (!index) return std::nullopt;
  const auto& fault = plan_[*index];
  return ProcessStart{.after_steps = fault.when ? fault.when->number : 0, .notice_seconds = *fault.seconds};
}

void FaultInjector::on_start(World& world, int rank) {
  if (const auto index = index_of_start(rank)) effects_[*index]->on_start(world, rank);
}

std::optional<std::size_t> FaultInjector::index_of_start(int rank) const {
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    const auto& effect = *effects_[index];
    if (plan_[index].kind == FaultKind::kRankJoin && effect.concerns(rank) && !effect.has_struck()) return index;
  }
  return std::nullopt;
}

// Called once after each failed attempt. The exchange clears the request, so a second failure ends the run.
bool FaultInjector::restarts() {
  for (const auto& effect : effects_) effect->on_restart();
  return run_.wants_restart.exchange(false);
}

}  // namespace accel::sim
