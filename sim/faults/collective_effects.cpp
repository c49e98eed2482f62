// Faults of one rank's part in a collective: its call, its tensors, its gradient hook.
#include <limits>

#include "sim/faults/fault_effect.hpp"

namespace accel::sim {
namespace {

// Changes a call as a wrong program would. Returns false if the call has nothing to change (a barrier has no
// dtype); the fault then waits for the next call. Each change yields a call that differs from every correct one
// of the others.
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

struct WrongCallEffect : FaultEffect {
  using FaultEffect::FaultEffect;
  void before_collective(World& world, int rank, const FaultSite& site, Call& call) override {
    auto wrong = call;
    if (make_wrong(wrong, *fault_.what) && strike(world, {rank}, /*may_stop=*/true, site)) call = std::move(wrong);
  }
};

// Thrown from the call in the backward phase: autograd runs DDP's hooks there, so the exception leaves `backward`.
struct HookException : FaultEffect {
  using FaultEffect::FaultEffect;
  void before_collective(World& world, int rank, const FaultSite& site, Call& /*call*/) override {
    if (world.clocks().phase(rank) == "backward" && strike(world, {rank}, /*may_stop=*/true, site))
      throw InjectedFault("injected exception in a backward hook");
  }
};

// The fault's rank marks the collective when it joins, because only then its phase and step are known; the
// fault strikes when all have joined, because only then the tensors of all ranks exist.
class MarkingEffect : public FaultEffect {
 public:
  using FaultEffect::FaultEffect;
  void before_collective(World& world, int rank, const FaultSite& site, Call& call) override {
    if (group_ != nullptr || !chooses(world, rank, call)) return;
    sequence_ = site.sequence;
    group_ = site.group;
  }
  void on_meeting(World& world, const FaultSite& site, MeetingFaults& faults) override {
    const bool is_marked = group_ == site.group && sequence_ == site.sequence;
    if (is_marked && strike(world, {*fault_.rank}, may_stop(), site))
      strike_at(world, site.group->group_rank_of(*fault_.rank), faults);
  }
  void on_restart() override { group_ = nullptr; }  // a mark whose collective never completed

 private:
  virtual bool chooses(World& world, int rank, const Call& call) = 0;
  [[nodiscard]] virtual bool may_stop() const { return true; }
  virtual void strike_at(World& world, int member, MeetingFaults& faults) = 0;

  std::atomic<const EngineGroup*> group_{nullptr};
  std::atomic<std::uint64_t> sequence_{0};
};

// Fails this collective for its members and breaks the rank's connections for all later ones.
class CrashDuringCollective : public MarkingEffect {
  using MarkingEffect::MarkingEffect;
  bool chooses(World& /*world*/, int /*rank*/, const Call& /*call*/) override { return true; }
  void strike_at(World& world, int /*member*/, MeetingFaults& faults) override {
    faults.error = [rank = *fault_.rank](int other) {
      return other == rank ? std::make_exception_ptr(InjectedFault("injected crash during a collective"))
                           : connection_closed(rank);
    };
    world.end_process(*fault_.rank, faults.error);
  }
};

// Marks a sum of gradients: a bucket of DDP, or a unit's gradients of a sharded model. Other collectives of the
// backward pass are left alone.
class GradientEffect : public MarkingEffect {
  using MarkingEffect::MarkingEffect;
  bool chooses(World& world, int rank, const Call& call) override {
    return traits_of(call.op).sums_gradients && world.clocks().phase(rank) == "backward";
  }
};

// Flips a bit of the result on one rank only: the other ranks have the correct sum, so the replicas diverge.
class BitFlip : public GradientEffect {
  using GradientEffect::GradientEffect;
  void strike_at(World& /*world*/, int member, MeetingFaults& faults) override {
    faults.corruptions.push_back({.member = member, .bit = *fault_.bit});
  }
};

class NanGradient : public GradientEffect {
  using GradientEffect::GradientEffect;
  // A NaN does not stop a run: no call fails, and the loss becomes NaN.
  [[nodiscard]] bool may_stop() const override { return false; }
  void strike_at(World& /*world*/, int member, MeetingFaults& faults) override {
    using Limits = std::numeric_limits<double>;
    faults.corruptions.push_back(
        {.member = member, .value = *fault_.value == BadValue::kNan ? Limits::quiet_NaN() : Limits::infinity()});
  }
};

}  // namespace

std::unique_ptr<FaultEffect> make_collective_effect(const Fault& fault, FaultedRun& run) {
  switch (fault.kind) {
    case FaultKind::kRankCrashDuringCollective: return std::make_unique<CrashDuringCollective>(fault, run);
    case FaultKind::kHookException: return std::make_unique<HookException>(fault, run);
    case FaultKind::kWrongCall: return std::make_unique<WrongCallEffect>(fault, run);
    case FaultKind::kBitFlip: return std::make_unique<BitFlip>(fault, run);
    case FaultKind::kNanGradient: return std::make_unique<NanGradient>(fault, run);
    default: throw InternalError(fmt::format("{} has no effect on a collective", rule_of(fault.kind).name));
  }
}

}  // namespace accel::sim
