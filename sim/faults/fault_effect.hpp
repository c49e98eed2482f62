#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/world.hpp"
#include "sim/faults/fault.hpp"

/// What one fault of a plan does to a world: a class per kind, which overrides the hooks at which the kind strikes.
///
/// Thread rule: as FaultModel.
namespace accel::sim {

struct FaultInjectorOptions {
  bool network_has_slow_links = false;  ///< a model of the network knows them, so that they cost nothing else
};

/// What the faults of one run share.
struct FaultedRun {
  const FaultInjectorOptions options;
  std::atomic<bool> wants_restart{false};
  Mutex strike_mutex;  // whoever blames a strike finds it
  Mutex mutex;
  std::vector<int> cut_off ACCEL_GUARDED_BY(mutex);  // ranks whose message was lost
  std::vector<int> late ACCEL_GUARDED_BY(mutex);     // ranks that pause beyond the timeout
};

/// The collective or message at which a fault strikes.
struct Occasion {
  const Call* call = nullptr;  // null: at none
  const Group* group = nullptr;
  std::uint64_t sequence = 0;
};

/// Visits the pairs of group ranks of which the first sends something straight to the second.
using VisitLinks = std::function<void(const std::function<void(int from, int to)>&)>;
/// Of one collective or message: seconds by which its messages are late, by group ranks of sender and receiver.
using LinkDelays = std::map<std::pair<int, int>, double>;

/// The messages of a collective that all have joined, or one message that was sent and is waited for.
struct Traffic {
  World& world;
  Occasion occasion;
  VisitLinks visit_links;
  int joined = 0;  // a rank that has made the call, by which its step is known
  LinkDelays delays = {};
  MeetingFaults faults = {};
};

class FaultEffect {
 public:
  FaultEffect(const Fault& fault, FaultedRun& run) : fault_(fault), run_(run) {}
  virtual ~FaultEffect() = default;

  /// Whether it may strike this rank at its `sequence`-th call.
  [[nodiscard]] bool may_strike(World& world, int rank, std::uint64_t sequence) const;
  [[nodiscard]] bool concerns(int rank) const;
  [[nodiscard]] bool has_struck() const { return has_struck_; }

  /// `rank` is about to join a collective, or to send or receive; it may strike.
  virtual void before_call(World& /*world*/, int /*rank*/, const Occasion& /*occasion*/) {}
  /// `rank` is about to join a collective; it may strike.
  virtual void before_collective(World& /*world*/, int /*rank*/, const Occasion& /*occasion*/, Call& /*call*/) {}
  /// All have joined a collective.
  virtual void on_meeting(World& /*world*/, const Occasion& /*occasion*/, MeetingFaults& /*faults*/) {}
  /// After `on_meeting`, and for each message.
  virtual void on_traffic(Traffic& /*traffic*/) {}
  /// Concerns the rank.
  virtual void at_point(World& /*world*/, int /*rank*/, StepPoint /*point*/, std::int64_t /*step*/) {}
  virtual double lost_seconds(int /*rank*/, double /*computed_seconds*/) { return 0; }
  /// Concerns the rank.
  virtual void on_rendezvous(World& /*world*/, int /*rank*/) {}
  /// FaultyFiles has done to `rank` what the fault says.
  virtual void on_file_fault(World& /*world*/, int /*rank*/) {}
  /// The run begins again.
  virtual void on_restart() {}

 protected:
  [[nodiscard]] bool is_due(World& world, int rank, std::uint64_t sequence) const;
  /// Whether this is the moment: the first time only.
  bool strike(World& world, std::vector<int> ranks, bool may_stop, const Occasion& occasion = {});
  /// The process of `rank` ends: its peers' connections close.
  static void disconnect(World& world, int rank);
  [[noreturn]] static void crash(World& world, int rank, const std::string& how);
  /// All others wait until they give up, and `rank` finds them gone.
  [[noreturn]] void come_too_late(World& world, int rank);
  /// A message to these ranks never arrives.
  void lose(const std::vector<int>& receivers, MeetingFaults& faults);

  const Fault& fault_;
  FaultedRun& run_;

 private:
  std::atomic<bool> has_struck_{false};
};

/// `fault` and `run` outlive it.
std::unique_ptr<FaultEffect> make_effect(const Fault& fault, FaultedRun& run);
/// The effects of one target. Throw InternalError for kinds of others.
std::unique_ptr<FaultEffect> make_rank_effect(const Fault& fault, FaultedRun& run);
std::unique_ptr<FaultEffect> make_collective_effect(const Fault& fault, FaultedRun& run);
std::unique_ptr<FaultEffect> make_message_effect(const Fault& fault, FaultedRun& run);
std::unique_ptr<FaultEffect> make_storage_effect(const Fault& fault, FaultedRun& run);

double seconds_of(std::chrono::milliseconds time);

}  // namespace accel::sim
