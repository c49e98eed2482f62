// Faults of a rank: it crashes, hangs, pauses or is slow. `may_stop` says whether a later failure of the run is
// attributed to the fault: a pause within the time-out must not be blamed for an unrelated error.
#include "sim/faults/fault_effect.hpp"
#include "sim/faults/fault_plan.hpp"

namespace accel::sim {
namespace {

// Strikes before the call is counted, so the others find the rank missing in the same collective.
struct CrashBeforeCollective : FaultEffect {
  using FaultEffect::FaultEffect;
  void before_call(World& world, int rank, const FaultSite& site) override {
    if (strike(world, {rank}, /*may_stop=*/true, site)) crash(world, rank, "injected crash before a collective");
  }
};

struct Leave : FaultEffect {
  using FaultEffect::FaultEffect;
  void before_call(World& world, int rank, const FaultSite& site) override {
    if (strike(world, {rank}, /*may_stop=*/true, site))
      crash(world, rank, "injected end of the process", *fault_.seconds);
  }
};

// See FaultInjector::next_start. No failure: nothing is attributed to it.
struct JoinElastic : FaultEffect {
  using FaultEffect::FaultEffect;
  void on_start(World& world, int rank) override { strike(world, {rank}, /*may_stop=*/false); }
};

struct Hang : FaultEffect {
  using FaultEffect::FaultEffect;
  void before_call(World& world, int rank, const FaultSite& site) override {
    if (strike(world, {rank}, /*may_stop=*/true, site)) world.hang(rank);
  }
};

// A pause beyond the time-out is not waited for: the rank blocks, and FaultInjector::on_quiescence ends the
// waits of the others with the error that they would get.
struct Pause : FaultEffect {
  using FaultEffect::FaultEffect;
  void before_call(World& world, int rank, const FaultSite& site) override {
    const bool is_too_long = *fault_.seconds > seconds_of(world.timeout());
    if (!strike(world, {rank}, is_too_long, site)) return;
    if (is_too_long) exceed_timeout(world, rank);
    world.clocks().delay(rank, *fault_.seconds, "rank_pause");
  }
};

struct SlowRank : FaultEffect {
  using FaultEffect::FaultEffect;
  // Adds the surplus of a factor: the computed seconds themselves have already passed.
  double lost_seconds(int rank, double computed_seconds) override {
    return concerns(rank) ? computed_seconds * (*fault_.factor - 1) : 0;
  }
  // Recorded once at the start: a slow rank has an effect in every call, and one record suffices.
  void on_rendezvous(World& world, int rank) override {
    if (fault_.rank == rank) strike(world, {rank}, /*may_stop=*/false);
  }
};

// At each backward pass, once per micro-batch, because that is when a slow step delays the others' all-reduce.
struct Jitter : FaultEffect {
  using FaultEffect::FaultEffect;
  void at_point(World& world, int rank, StepPoint point, std::int64_t step) override {
    if (point != StepPoint::kBackward) return;
    const double seconds = jitter_seconds(fault_, rank, static_cast<std::uint64_t>(step));
    const double timeout = seconds_of(world.timeout());
    strike(world, fault_.rank ? std::vector<int>{*fault_.rank} : std::vector<int>{},
           /*may_stop=*/2 * *fault_.seconds > timeout);
    if (seconds > timeout) exceed_timeout(world, rank);
    world.clocks().delay(rank, seconds, "jitter");
  }
};

struct CrashBeforeOptimizerStep : FaultEffect {
  using FaultEffect::FaultEffect;
  void at_point(World& world, int rank, StepPoint point, std::int64_t step) override {
    if (is_here(point, step) && strike(world, {rank}, /*may_stop=*/true))
      crash(world, rank, "injected crash before the optimizer's step");
  }

 protected:
  [[nodiscard]] bool is_here(StepPoint point, std::int64_t step) const {
    return point == StepPoint::kUpdate && (!fault_.when || step >= fault_.when->number);
  }
};

// `may_stop` is false: the crash ends this attempt, but a run that fails after its restart has another cause.
struct Restart : CrashBeforeOptimizerStep {
  using CrashBeforeOptimizerStep::CrashBeforeOptimizerStep;
  void at_point(World& world, int rank, StepPoint point, std::int64_t step) override {
    if (!is_here(point, step) || !strike(world, {rank}, /*may_stop=*/false)) return;
    run_.wants_restart = true;
    crash(world, rank, "injected crash, to be started again");
  }
};

}  // namespace

std::unique_ptr<FaultEffect> make_rank_effect(const Fault& fault, FaultedRun& run) {
  switch (fault.kind) {
    case FaultKind::kRankCrashBeforeCollective: return std::make_unique<CrashBeforeCollective>(fault, run);
    case FaultKind::kRankCrashBeforeOptimizerStep: return std::make_unique<CrashBeforeOptimizerStep>(fault, run);
    case FaultKind::kRankHang: return std::make_unique<Hang>(fault, run);
    case FaultKind::kRankPause: return std::make_unique<Pause>(fault, run);
    case FaultKind::kSlowRank: return std::make_unique<SlowRank>(fault, run);
    case FaultKind::kJitter: return std::make_unique<Jitter>(fault, run);
    case FaultKind::kRankLeave: return std::make_unique<Leave>(fault, run);
    case FaultKind::kRankJoin: return std::make_unique<JoinElastic>(fault, run);
    case FaultKind::kRankRestart: return std::make_unique<Restart>(fault, run);
    default: throw InternalError(fmt::format("{} has no effect on a rank", rule_of(fault.kind).name));
  }
}

}  // namespace accel::sim
