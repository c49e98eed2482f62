#include "sim/faults/fault_injector.hpp"

#include <algorithm>
#include <set>

#include "sim/collectives/collective_plan.hpp"
#include "sim/engine/world.hpp"
#include "sim/faults/fault_plan.hpp"
#include "sim/faults/faulty_files.hpp"

namespace accel::sim {
namespace {

std::exception_ptr injected(const std::string& text) { return std::make_exception_ptr(InjectedFault(text)); }

// What a call becomes on the one rank whose program is wrong. False if the call has nothing of the kind.
bool make_wrong(Call& call, WrongCall what) {
  switch (what) {
    case WrongCall::kOp:
      call.op = call.op == Collective::kAllGather ? Collective::kAllReduce : Collective::kAllGather;
      return true;
    case WrongCall::kOrder:
      call = {.op = call.op == Collective::kBarrier ? Collective::kAllGather : Collective::kBarrier,
              .where = call.where};
      return true;
    case WrongCall::kDtype: call.dtype = call.dtype == "float64" ? "float32" : "float64"; return !call.shapes.empty();
    case WrongCall::kReduceOp:
      if (call.reduce_op.empty()) return false;
      call.reduce_op = call.reduce_op == "max" ? "sum" : "max";
      return true;
    case WrongCall::kSize:
      if (call.shapes.empty()) return false;
      if (call.shapes.front().empty()) call.shapes.front().push_back(1);
      ++call.shapes.front().back();
      return true;
    case WrongCall::kShape:
      if (call.shapes.empty()) return false;
      call.shapes.front().insert(call.shapes.front().begin(), 1);
      return true;
  }
  return false;
}

// A fault without a rank concerns all that its kind may strike.
bool concerns(const Fault& fault, int rank) { return !fault.rank || *fault.rank == rank || *fault.rank == kAnyRank; }

// A bucket of DDP, or a unit's gradients of a sharded model.
bool sums_gradients(World& world, int rank, const Call& call) {
  return traits_of(call.op).sums_gradients && world.phase(rank) == "backward";
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

double seconds_of(std::chrono::milliseconds time) { return std::chrono::duration<double>(time).count(); }

// Visits the pairs of group ranks of which the first sends something straight to the second.
using VisitLinks = std::function<void(const std::function<void(int from, int to)>&)>;

bool has_link(const VisitLinks& visit_links, int from, int to) {
  bool found = false;
  visit_links([&](int sender, int receiver) { found = found || (sender == from && receiver == to); });
  return found;
}

// The ranks to which a call sends something across the cut.
std::vector<int> cut_off_by(const Fault& partition, const Group& group, const VisitLinks& visit_links) {
  const auto is_inside = [&](int member) { return contains(*partition.ranks, group.ranks[member]); };
  std::set<int> receivers;
  visit_links([&](int from, int to) {
    if (is_inside(from) != is_inside(to) && (is_inside(from) || !partition.one_way)) receivers.insert(group.ranks[to]);
  });
  return {receivers.begin(), receivers.end()};
}

std::exception_ptr timed_out(const World& world) {
  return std::make_exception_ptr(
      GlooError(fmt::format("Timed out waiting {}ms for recv operation to complete", world.timeout().count())));
}

}  // namespace

FaultInjector::FaultInjector(std::vector<Fault> plan, FaultInjectorOptions options)
    : plan_(std::move(plan)), options_(options), states_(plan_.size()) {}

bool FaultInjector::is_due(const Fault& fault, World& world, int rank, std::uint64_t sequence) {
  if (!fault.when) return true;
  return fault.when->number <=
         (fault.when->unit == When::Unit::kStep ? world.step(rank) : static_cast<std::int64_t>(sequence));
}

bool FaultInjector::strike(std::size_t index, World& world, std::vector<int> ranks, bool may_stop,
                           const Occasion& occasion) {
  const MutexLock lock(strike_mutex_);  // who blames a strike finds it
  if (states_[index].has_struck.exchange(true)) return false;
  std::sort(ranks.begin(), ranks.end());
  FaultStrike strike{.name = std::string(rule_of(plan_[index].kind).name),
                     .ranks = std::move(ranks),
                     .text = describe(plan_[index]),
                     .may_stop = may_stop};
  if (occasion.call != nullptr) {
    strike.call = *occasion.call;
    strike.group = occasion.group->name;
    strike.sequence = occasion.sequence;
  }
  world.note(std::move(strike));
  return true;
}

std::vector<std::string> FaultInjector::not_struck() const {
  std::vector<std::string> faults;
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    if (!states_[index].has_struck) faults.push_back(describe(plan_[index]));
  }
  return faults;
}

// As the end of a process: its peers' connections close.
void FaultInjector::disconnect(World& world, int rank) {
  world.disconnect({rank}, [rank](int) { return connection_closed(rank); });
}

void FaultInjector::crash(World& world, int rank, const std::string& how) {
  disconnect(world, rank);
  throw InjectedFault(how);
}

bool FaultInjector::is_open(std::size_t index, World& world, int rank, std::uint64_t sequence) const {
  const auto& fault = plan_[index];
  return fault.rank && concerns(fault, rank) && !states_[index].has_struck && is_due(fault, world, rank, sequence);
}

void FaultInjector::before_call(World& world, int rank, const Group& group, std::uint64_t sequence, Call& call) {
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    if (!is_open(index, world, rank, sequence)) continue;
    befall_rank(index, world, rank, {&call, &group, sequence});
    befall_collective(index, world, rank, group, sequence, call);
  }
}

void FaultInjector::before_message(World& world, int rank, const Group& group, std::uint64_t sequence,
                                   const Call& call) {
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    if (is_open(index, world, rank, sequence)) befall_rank(index, world, rank, {&call, &group, sequence});
  }
}

// What keeps a rank from any call.
void FaultInjector::befall_rank(std::size_t index, World& world, int rank, const Occasion& occasion) {
  const auto& fault = plan_[index];
  switch (fault.kind) {
    case FaultKind::kRankCrashBeforeCollective:
      if (strike(index, world, {rank}, true, occasion)) crash(world, rank, "injected crash before a collective");
      break;
    case FaultKind::kRankHang:
      if (strike(index, world, {rank}, true, occasion)) world.hang(rank);
      break;
    case FaultKind::kRankPause:
      if (const bool is_too_long = *fault.seconds > seconds_of(world.timeout());
          strike(index, world, {rank}, is_too_long, occasion)) {
        if (is_too_long) come_too_late(world, rank);
        world.delay(rank, *fault.seconds, "rank_pause");
      }
      break;
    default: break;
  }
}

// What befalls the rank's collectives alone.
void FaultInjector::befall_collective(std::size_t index, World& world, int rank, const Group& group,
                                      std::uint64_t sequence, Call& call) {
  const auto& fault = plan_[index];
  const Occasion occasion{&call, &group, sequence};
  const auto mark = [&, &state = states_[index]] {
    if (state.group != nullptr) return;
    state.sequence = sequence;
    state.group = &group;
  };
  switch (fault.kind) {
    case FaultKind::kHookException:
      if (world.phase(rank) == "backward" && strike(index, world, {rank}, true, occasion))
        throw InjectedFault("injected exception in a backward hook");
      break;
    case FaultKind::kWrongCall: {
      auto wrong = call;
      if (make_wrong(wrong, *fault.what) && strike(index, world, {rank}, true, occasion)) call = std::move(wrong);
      break;
    }
    case FaultKind::kBitFlip:
    case FaultKind::kNanGradient:
      if (sums_gradients(world, rank, call)) mark();
      break;
    case FaultKind::kRankCrashDuringCollective: mark(); break;
    default: break;
  }
}

// All others wait until they give up, and it finds them gone.
void FaultInjector::come_too_late(World& world, int rank) {
  {
    const MutexLock lock(mutex_);
    late_.push_back(rank);
  }
  world.hang(rank);
}

void FaultInjector::lose(const std::vector<int>& receivers, MeetingFaults& faults) {
  const MutexLock lock(mutex_);
  cut_off_.insert(cut_off_.end(), receivers.begin(), receivers.end());
  faults.is_lost = true;
}

MeetingFaults FaultInjector::on_meeting(World& world, const Group& group, std::uint64_t sequence, const Call& call) {
  MeetingFaults faults;
  LinkDelays on_links;
  const auto visit_links = [&, size = static_cast<int>(group.ranks.size())](const auto& visit) {
    for_each_link(call.op, size, call.root, visit);
  };
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    befall_marked(index, world, group, sequence, call, faults);
    befall_traffic(index, world, group, sequence, call, visit_links, group.ranks.front(), on_links, faults);
  }
  return faults;
}

MeetingFaults FaultInjector::on_message(World& world, const Group& group, int source, int destination,
                                        std::uint64_t sequence, const Call& call) {
  MeetingFaults faults;
  LinkDelays on_links;
  const auto visit_links = [=](const auto& visit) { visit(source, destination); };
  for (std::size_t index = 0; index < plan_.size(); ++index)
    befall_traffic(index, world, group, sequence, call, visit_links, group.ranks[destination], on_links, faults);
  return faults;
}

// What befalls the collective that the fault's rank has chosen when it joined.
void FaultInjector::befall_marked(std::size_t index, World& world, const Group& group, std::uint64_t sequence,
                                  const Call& call, MeetingFaults& faults) {
  const auto& fault = plan_[index];
  const bool is_marked = states_[index].group == &group && states_[index].sequence == sequence;
  if (!is_marked ||
      !strike(index, world, {*fault.rank}, fault.kind != FaultKind::kNanGradient, {&call, &group, sequence}))
    return;
  const int member = group.group_rank_of(*fault.rank);
  switch (fault.kind) {
    case FaultKind::kRankCrashDuringCollective:
      faults.error = [rank = *fault.rank](int other) {
        return other == rank ? injected("injected crash during a collective") : connection_closed(rank);
      };
      world.disconnect({*fault.rank}, faults.error);
      break;
    case FaultKind::kBitFlip: faults.corruptions.push_back({.member = member, .bit = *fault.bit}); break;
    case FaultKind::kNanGradient:
      faults.corruptions.push_back({.member = member,
                                    .value = *fault.value == BadValue::kNan ? std::numeric_limits<double>::quiet_NaN()
                                                                            : std::numeric_limits<double>::infinity()});
      break;
    default: break;
  }
}

// What befalls messages on their way: those of a collective's algorithm, or one that the program sends.
void FaultInjector::befall_traffic(std::size_t index, World& world, const Group& group, std::uint64_t sequence,
                                   const Call& call, const VisitLinks& visit_links, int joined, LinkDelays& on_links,
                                   MeetingFaults& faults) {
  const auto& fault = plan_[index];
  const Occasion occasion{&call, &group, sequence};
  const int from = fault.link ? group.group_rank_of(fault.link->from) : -1,
            to = fault.link ? group.group_rank_of(fault.link->to) : -1;
  const bool crosses_link = from >= 0 && to >= 0 && has_link(visit_links, from, to);
  const auto is_first = [&] {
    return crosses_link && is_due(fault, world, fault.link->to, sequence) &&
           strike(index, world, {fault.link->from, fault.link->to}, true, occasion);
  };
  // Beyond the timeout its receiver has given up. Other links do not wait for this one.
  const auto delay = [&](double seconds) {
    faults.delays.resize(group.ranks.size());
    const double late = on_links[{from, to}] += seconds;
    faults.delays[to] = std::max(faults.delays[to], late);
    const bool is_too_long = late > seconds_of(world.timeout());
    strike(index, world, {fault.link->from, fault.link->to}, is_too_long, occasion);
    if (!is_too_long) return;
    {
      const MutexLock lock(strike_mutex_);
      world.blame(describe(fault));
    }
    lose({fault.link->to}, faults);
  };
  switch (fault.kind) {
    case FaultKind::kMessageDelay:
      if (crosses_link && strikes(fault, fault.link->from, sequence)) delay(*fault.seconds);
      break;
    case FaultKind::kSlowLink: {
      if (!crosses_link) break;
      constexpr double kBytesPerSecond = 1e9;  // of a plain link, where no network is given
      if (options_.network_has_slow_links) {
        strike(index, world, {fault.link->from, fault.link->to}, false, occasion);
      } else {
        delay((*fault.factor - 1) * (call.op == Collective::kRecv ? 1 : 2) * static_cast<double>(call.bytes) /
              kBytesPerSecond);
      }
      break;
    }
    case FaultKind::kMessageLoss:
      if (is_first()) lose({fault.link->to}, faults);
      break;
    case FaultKind::kConnectionReset:
      if (is_first()) {
        faults.error = [link = *fault.link](int rank) {
          if (rank != link.from && rank != link.to) return connection_closed(link.to);
          return std::make_exception_ptr(
              GlooError(fmt::format("Connection reset by peer [rank {}]", rank == link.from ? link.to : link.from)));
        };
        world.disconnect({fault.link->from, fault.link->to}, faults.error);
      }
      break;
    case FaultKind::kPartition:
      if (!states_[index].has_struck && !is_due(fault, world, joined, sequence)) break;
      if (const auto receivers = cut_off_by(fault, group, visit_links); !receivers.empty()) {
        strike(index, world, *fault.ranks, true, occasion);
        lose(receivers, faults);
      }
      break;
    default: break;
  }
}

void FaultInjector::at_point(World& world, int rank, StepPoint point, std::int64_t step) {
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    const auto& fault = plan_[index];
    if (!concerns(fault, rank)) continue;
    if (fault.kind == FaultKind::kJitter && point == StepPoint::kBackward) {
      const double seconds = jitter_seconds(fault, rank, static_cast<std::uint64_t>(step));
      const double timeout = seconds_of(world.timeout());
      strike(index, world, fault.rank ? std::vector<int>{*fault.rank} : std::vector<int>{},
             /*may_stop=*/2 * *fault.seconds > timeout);
      if (seconds > timeout) come_too_late(world, rank);
      world.delay(rank, seconds, "jitter");
    }
    const bool is_due = !fault.when || step >= fault.when->number;
    if (fault.kind == FaultKind::kRankCrashBeforeOptimizerStep && point == StepPoint::kUpdate && is_due &&
        strike(index, world, {rank}, true)) {
      crash(world, rank, "injected crash before the optimizer's step");
    }
    if (fault.kind == FaultKind::kRankRestart && point == StepPoint::kUpdate && is_due &&
        strike(index, world, {rank}, false)) {
      wants_restart_ = true;
      crash(world, rank, "injected crash, to be started again");
    }
  }
}

double FaultInjector::lost_seconds(int rank, double computed_seconds) {
  double lost = 0;
  for (const auto& fault : plan_) {
    if (fault.kind == FaultKind::kSlowRank && concerns(fault, rank)) lost += computed_seconds * (*fault.factor - 1);
  }
  return lost;
}

void FaultInjector::on_rendezvous(World& world, int rank) {
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    const auto& fault = plan_[index];
    if (fault.kind == FaultKind::kSlowRank && fault.rank == rank) strike(index, world, {rank}, false);
    if (fault.kind != FaultKind::kStoreSlow || !concerns(fault, rank)) continue;
    const bool gives_up = fault.away || *fault.seconds > seconds_of(world.timeout());
    strike(index, world, {}, gives_up);
    if (gives_up) {
      throw InjectedFault(fmt::format("The client socket has timed out after {}ms while trying to connect to the store",
                                      world.timeout().count()));
    }
    world.delay(rank, *fault.seconds, "store_slow");
  }
}

// A process that is started again does not die of the same write.
std::vector<Fault> FaultInjector::left_for(int rank) const {
  std::vector<Fault> left;
  for (std::size_t index = 0; index < plan_.size(); ++index) {
    const bool is_over = plan_[index].kind == FaultKind::kTornWrite && states_[index].has_struck;
    if (plan_[index].rank == rank && !is_over) left.push_back(plan_[index]);
  }
  return left;
}

std::shared_ptr<Files> FaultInjector::files(World& world, int rank, std::shared_ptr<Files> disk) {
  struct RankFiles {
    std::shared_ptr<Files> disk;
    FaultyFiles files;
  };
  const auto on_strike = [this, &world, rank](const Fault& fault) {
    const auto index = static_cast<std::size_t>(std::find(plan_.begin(), plan_.end(), fault) - plan_.begin());
    if (strike(index, world, {rank}, true) && fault.kind == FaultKind::kTornWrite) disconnect(world, rank);
  };
  auto own = std::make_shared<RankFiles>(disk, FaultyFiles(*disk, left_for(rank), rank, on_strike));
  return {own, &own->files};
}

// The ranks whose message does not come time out and close their connections, which is what the others see. For a rank
// that stands still all others wait.
bool FaultInjector::on_quiescence(World& world) {
  const auto hanging = world.hanging();
  std::vector<int> cut_off, late;
  {
    const MutexLock lock(mutex_);
    cut_off.swap(cut_off_);
    std::sort(cut_off.begin(), cut_off.end());  // not in the order of threads
    late.swap(late_);
  }
  if (hanging.empty() && cut_off.empty()) return false;
  const auto error = [=, timeout = timed_out(world), num_ranks = world.num_ranks()](int rank) {
    if (contains(late, rank)) return connection_closed((rank + 1) % num_ranks);
    if (contains(hanging, rank)) return injected("injected hang, ended with the run");
    return hanging.empty() && !contains(cut_off, rank) ? connection_closed(cut_off.front()) : timeout;
  };
  world.time_out(seconds_of(world.timeout()), error);
  return true;
}

bool FaultInjector::restarts() {
  for (auto& state : states_) state.group = nullptr;  // of a collective that never came
  return wants_restart_.exchange(false);
}

}  // namespace accel::sim
