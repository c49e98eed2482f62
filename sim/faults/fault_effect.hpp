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

/// Applies one fault of a plan to a world: one class per kind, which overrides the hooks at which the kind strikes.
///
/// Thread rule: like FaultModel.
namespace accel::sim {

struct FaultInjectorOptions {
  bool network_has_slow_links = false;  ///< the network model applies them, so slow_link adds no delay
};

/// The state that the faults of one run share.
struct FaultedRun {
  const FaultInjectorOptions options;
  std::atomic<bool> wants_restart{false};
  Mutex strike_mutex;  // `blame` finds a strike only after it has been noted
  Mutex mutex;
  std::vector<int> cut_off ACCEL_GUARDED_BY(mutex);  // ranks that wait for a lost message
  std::vector<int> late ACCEL_GUARDED_BY(mutex);     // ranks that pause longer than the timeout
};

/// The collective or message at which a fault strikes.
struct FaultSite {
  const Call* call = nullptr;  // null: not at a call
  const EngineGroup* group = nullptr;
  std::uint64_t sequence = 0;
};

/// Calls a function for each pair of group ranks of which the first sends directly to the second.
using VisitLinks = std::function<void(const std::function<void(int from, int to)>&)>;
/// Delays of one collective or message in seconds, by group ranks of sender and receiver.
using LinkDelays = std::map<std::pair<int, int>, double>;

/// The messages of a collective that all have joined, or one message that was sent and is awaited.
struct Traffic {
  World& world;
  FaultSite site;
  VisitLinks visit_links;
  int joined = 0;  // world rank whose micro-batch decides whether a fault with `step` is due
  LinkDelays delays = {};
  MeetingFaults faults = {};
};

class FaultEffect {
 public:
  FaultEffect(const Fault& fault, FaultedRun& run) : fault_(fault), run_(run) {}
  virtual ~FaultEffect() = default;

  /// Returns whether a fault of one rank that has not struck yet is due at the `sequence`-th call of `rank`; false for
  /// faults without a rank.
  [[nodiscard]] bool may_strike(World& world, int rank, std::uint64_t sequence) const;
  [[nodiscard]] bool concerns(int rank) const;
  [[nodiscard]] bool has_struck() const { return has_struck_; }

  /// Called before `rank` joins a collective, sends or receives, if `may_strike`.
  virtual void before_call(World& /*world*/, int /*rank*/, const FaultSite& /*site*/) {}
  /// Called before `rank` joins a collective, if `may_strike`.
  virtual void before_collective(World& /*world*/, int /*rank*/, const FaultSite& /*site*/, Call& /*call*/) {}
  /// Called once all have joined a collective.
  virtual void on_meeting(World& /*world*/, const FaultSite& /*site*/, MeetingFaults& /*faults*/) {}
  /// Called after `on_meeting`, and for each message.
  virtual void on_traffic(Traffic& /*traffic*/) {}
  /// Called only for ranks that the fault concerns.
  virtual void at_point(World& /*world*/, int /*rank*/, StepPoint /*point*/, std::int64_t /*step*/) {}
  virtual double lost_seconds(int /*rank*/, double /*computed_seconds*/) { return 0; }
  /// Called only for ranks that the fault concerns.
  virtual void on_rendezvous(World& /*world*/, int /*rank*/) {}
  /// Called when FaultyFiles has applied the fault to `rank`.
  virtual void on_file_fault(World& /*world*/, int /*rank*/) {}
  /// Called when the process of `rank` is started anew, because of this fault.
  virtual void on_start(World& /*world*/, int /*rank*/) {}
  /// Called when the run is restarted.
  virtual void on_restart() {}

 protected:
  [[nodiscard]] bool is_due(World& world, int rank, std::uint64_t sequence) const;
  /// Records a strike. Returns true the first time only.
  bool strike(World& world, std::vector<int> ranks, bool may_stop, const FaultSite& site = {});
  /// Closes the connections of `rank`'s peers, as the end of its process does, which all know after `notice_seconds`.
  static void disconnect(World& world, int rank, double notice_seconds = 0);
  [[noreturn]] static void crash(World& world, int rank, const std::string& how, double notice_seconds = 0);
  /// Blocks `rank` until all others have timed out; `rank` then finds its connections closed.
  [[noreturn]] void exceed_timeout(World& world, int rank);
  /// Loses a message to these ranks.
  void lose(const std::vector<int>& receivers, MeetingFaults& faults);

  const Fault& fault_;
  FaultedRun& run_;

 private:
  std::atomic<bool> has_struck_{false};
};

/// Creates the effect of a fault. `fault` and `run` must outlive it.
std::unique_ptr<FaultEffect> make_effect(const Fault& fault, FaultedRun& run);
/// Create the effects of one target. Throw InternalError for kinds of other targets.
std::unique_ptr<FaultEffect> make_rank_effect(const Fault& fault, FaultedRun& run);
std::unique_ptr<FaultEffect> make_collective_effect(const Fault& fault, FaultedRun& run);
std::unique_ptr<FaultEffect> make_message_effect(const Fault& fault, FaultedRun& run);
std::unique_ptr<FaultEffect> make_storage_effect(const Fault& fault, FaultedRun& run);

double seconds_of(std::chrono::milliseconds time);

}  // namespace accel::sim
