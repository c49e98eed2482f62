#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/engine/collective_call.hpp"

namespace accel {
class Files;
}

namespace accel::sim {

class World;
struct Group;

/// An injected fault that has taken effect.
struct FaultStrike {
  std::string name;                         // of the kind, as in a fault file
  std::vector<int> ranks;                   // on which
  std::string text;                         // "rank_pause on rank 3 at step 5"
  bool may_stop = true;                     // a run that fails after it has failed because of it
  std::optional<Call> call = std::nullopt;  // the collective in which it struck
  std::string group = {};
  std::uint64_t sequence = 0;
};

/// Thrown on a rank on which an injected fault strikes.
class InjectedFault : public Error {
 public:
  using Error::Error;
};

/// What a fault does to one member's tensors in a collective.
struct Corruption {
  int member = 0;                   // group rank
  std::optional<std::int64_t> bit;  // of the result, modulo its size, is turned
  std::optional<double> value;      // or the first element of its contribution becomes this
};

/// What befalls a collective that all members have joined, or a message that was sent and is waited for.
struct MeetingFaults {
  std::vector<double> delays;                         // seconds until each member can begin, by group rank; empty: none
  std::function<std::exception_ptr(int rank)> error;  // set: the collective fails, and this is what each rank sees
  bool is_lost = false;                               // it never ends: a message was lost
  std::vector<Corruption> corruptions;
};

/// Places of a training step at which a fault may strike between collectives.
/// The backward pass of a micro-batch begins; the optimizer is about to step; it has.
enum class StepPoint { kBackward, kUpdate, kUpdated };

/// What goes wrong in a world. The world asks at each place where something can.
///
/// Thread rule: any rank's thread; several at once unless the schedule is serial.
class FaultModel {
 public:
  virtual ~FaultModel() = default;
  /// `rank` is about to join a collective, which is its n-th in the group. May change the call, delay or hang the rank,
  /// throw.
  virtual void before_call(World& world, int rank, const Group& group, std::uint64_t sequence, Call& call) = 0;
  /// All have joined, and their calls agree.
  virtual MeetingFaults on_meeting(World& world, const Group& group, std::uint64_t sequence, const Call& call) = 0;
  /// `rank` is about to send or receive its n-th message to or from one other. May delay or hang the rank, throw.
  virtual void before_message(World& /*world*/, int /*rank*/, const Group& /*group*/, std::uint64_t /*sequence*/,
                              const Call& /*call*/) {}
  /// The n-th message between two group ranks was sent and is waited for.
  virtual MeetingFaults on_message(World& /*world*/, const Group& /*group*/, int /*source*/, int /*destination*/,
                                   std::uint64_t /*sequence*/, const Call& /*call*/) {
    return {};
  }
  /// `rank` is at a place of its `step`-th micro-batch (from 0). May delay or hang the rank, throw.
  virtual void at_point(World& world, int rank, StepPoint point, std::int64_t step) = 0;
  /// `rank` has computed for so many seconds between two calls. Returns how many it takes longer.
  virtual double lost_seconds(int rank, double computed_seconds) = 0;
  /// `rank` joins the others at the store: at the start, and for each new group. May delay it, throw.
  virtual void on_rendezvous(World& world, int rank) = 0;
  /// Where `rank` saves: `disk`, or something before it that fails as disks do.
  virtual std::shared_ptr<Files> files(World& world, int rank, std::shared_ptr<Files> disk) = 0;
  /// No rank can go on. Returns whether it is this model's doing, and has released them.
  virtual bool on_quiescence(World& world) = 0;
  /// A run has failed: whether a launcher starts all ranks again.
  virtual bool restarts() = 0;
  /// What has not happened up to now, in words: a run that ended well has not withstood it.
  [[nodiscard]] virtual std::vector<std::string> not_struck() const { return {}; }
};

}  // namespace accel::sim
