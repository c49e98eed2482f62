#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/diagnosis/collective_call.hpp"

namespace accel {
class Files;
}

namespace accel::sim {

class World;
struct EngineGroup;

/// An injected fault that has taken effect.
struct AppliedFault {
  std::string name;                         // the fault's kind, as in a fault file
  std::vector<int> ranks;                   // affected ranks
  std::string text;                         // "rank_pause on rank 3 at step 5"
  bool may_stop = true;                     // a later failure of the run is attributed to it
  std::optional<Call> call = std::nullopt;  // the collective in which it struck
  std::string group = {};
  std::uint64_t sequence = 0;
};

/// Thrown on a rank when an injected fault stops it.
class InjectedFault : public Error {
 public:
  using Error::Error;
};

/// How a fault changes one member's tensors in a collective. Exactly one of `bit` and `value` is set.
struct Corruption {
  int member = 0;                   // group rank
  std::optional<std::int64_t> bit;  // flips this bit of the result, modulo its size
  std::optional<double> value;      // or sets the first element of its contribution
};

/// The effects of faults on a collective that all members have joined, or on a message that was sent and is awaited.
struct MeetingFaults {
  std::vector<double> delays;                         // seconds until each member can begin, by group rank; empty: none
  std::function<std::exception_ptr(int rank)> error;  // set: the collective fails, and this is what each rank sees
  bool is_lost = false;                               // the meeting never ends because a message was lost
  std::vector<Corruption> corruptions;
};

/// Points of a training step at which a fault may strike between collectives: the backward pass of a
/// micro-batch begins; the optimizer is about to step; the optimizer has stepped.
enum class StepPoint { kBackward, kUpdate, kUpdated };

/// Decides what goes wrong in a world. The world calls it at each point where something can go wrong.
///
/// Thread rule: any rank's thread, concurrently unless the schedule is serial.
class FaultModel {
 public:
  virtual ~FaultModel() = default;
  /// Called before `rank` joins its n-th collective of the group. May change the call, delay or hang the rank,
  /// or throw.
  virtual void before_call(World& world, int rank, const EngineGroup& group, std::uint64_t sequence, Call& call) = 0;
  /// Called once all members have joined and their calls agree.
  virtual MeetingFaults on_meeting(World& world, const EngineGroup& group, std::uint64_t sequence,
                                   const Call& call) = 0;
  /// Called before `rank` sends or receives its n-th message to or from another rank. May delay or hang the
  /// rank, or throw.
  virtual void before_message(World& /*world*/, int /*rank*/, const EngineGroup& /*group*/, std::uint64_t /*sequence*/,
                              const Call& /*call*/) {}
  /// Called when the n-th message between two group ranks was sent and is awaited.
  virtual MeetingFaults on_message(World& /*world*/, const EngineGroup& /*group*/, int /*source*/, int /*destination*/,
                                   std::uint64_t /*sequence*/, const Call& /*call*/) {
    return {};
  }
  /// Called when `rank` is at a point of its `step`-th micro-batch (from 0). May delay or hang the rank, or throw.
  virtual void at_point(World& world, int rank, StepPoint point, std::int64_t step) = 0;
  /// Called when `rank` has computed for this many seconds between two calls. Returns the extra seconds that a
  /// fault adds.
  virtual double lost_seconds(int rank, double computed_seconds) = 0;
  /// Called when `rank` joins the others at the store: at the start, and for each new group. May delay the rank
  /// or throw.
  virtual void on_rendezvous(World& world, int rank) = 0;
  /// Returns where `rank` saves: `disk`, or a wrapper around it that fails as disks do.
  virtual std::shared_ptr<Files> files(World& world, int rank, std::shared_ptr<Files> disk) = 0;
  /// Called when no rank can continue. Returns true if this model caused that and has released the ranks.
  virtual bool on_quiescence(World& world) = 0;
  /// When a launcher starts the process of a rank anew, that joins an elastic training.
  struct ProcessStart {
    std::int64_t after_steps = 0;  ///< of the training, with its repeatable bodies
    double notice_seconds = 0;     ///< virtual, until the rank takes part
  };
  /// Called when the process of the rank has ended; nothing: it is not started anew.
  [[nodiscard]] virtual std::optional<ProcessStart> next_start(int /*rank*/) { return std::nullopt; }
  virtual void on_start(World& /*world*/, int /*rank*/) {}
  /// Called after a run has failed. Returns whether a launcher would restart all ranks.
  virtual bool restarts() = 0;
  /// Describes the faults that have not struck: a successful run did not have to survive them.
  [[nodiscard]] virtual std::vector<std::string> not_struck() const { return {}; }
};

}  // namespace accel::sim
