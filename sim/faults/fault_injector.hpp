#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "sim/engine/faults.hpp"
#include "sim/faults/fault.hpp"

/// Carries a plan of faults out on a world of simulated ranks.
///
///     auto plan = plan_faults(read_faults("faults.yaml", num_ranks), num_ranks);
///     simulate({.num_ranks = num_ranks, .faults = std::make_shared<FaultInjector>(plan)}, body);
///
/// What every rank then sees is what real Gloo shows, and stands in sim/faults/README.md. One injector serves one run,
/// and the runs after its restarts.
///
/// Thread rule: as FaultModel.
namespace accel::sim {

struct FaultInjectorOptions {
  bool network_has_slow_links = false;  ///< a model of the network knows them, so that they cost nothing else
};

class FaultInjector : public FaultModel {
 public:
  explicit FaultInjector(std::vector<Fault> plan, FaultInjectorOptions options = {});

  void before_call(World& world, int rank, const Group& group, std::uint64_t sequence, Call& call) override;
  MeetingFaults on_meeting(World& world, const Group& group, std::uint64_t sequence, const Call& call) override;
  void before_message(World& world, int rank, const Group& group, std::uint64_t sequence, const Call& call) override;
  MeetingFaults on_message(World& world, const Group& group, int source, int destination, std::uint64_t sequence,
                           const Call& call) override;
  void at_point(World& world, int rank, StepPoint point, std::int64_t step) override;
  double lost_seconds(int rank, double computed_seconds) override;
  void on_rendezvous(World& world, int rank) override;
  std::shared_ptr<Files> files(World& world, int rank, std::shared_ptr<Files> disk) override;
  bool on_quiescence(World& world) override;
  bool restarts() override;
  [[nodiscard]] std::vector<std::string> not_struck() const override;

  [[nodiscard]] const std::vector<Fault>& plan() const { return plan_; }

 private:
  // Of one fault: whether it has struck; and of one that strikes when all have joined, the collective that its rank
  // chose.
  struct State {
    std::atomic<bool> has_struck{false};
    std::atomic<const Group*> group{nullptr};
    std::atomic<std::uint64_t> sequence{0};
  };

  // The call at which a fault strikes, if it is one.
  struct Occasion {
    const Call* call;  // null: at none
    const Group* group;
    std::uint64_t sequence;
  };

  // Visits the pairs of group ranks of which the first sends something straight to the second, in a collective or as
  // a message.
  using VisitLinks = std::function<void(const std::function<void(int from, int to)>&)>;
  using LinkDelays = std::map<std::pair<int, int>, double>;  // seconds, of one meeting

  static bool is_due(const Fault& fault, World& world, int rank, std::uint64_t sequence);
  // Whether this is the moment: the first time only.
  bool strike(std::size_t index, World& world, std::vector<int> ranks, bool may_stop, const Occasion& occasion = {});
  static void disconnect(World& world, int rank);
  [[noreturn]] static void crash(World& world, int rank, const std::string& how);
  // What is left of the plan for the files of a rank.
  [[nodiscard]] std::vector<Fault> left_for(int rank) const;
  [[noreturn]] void come_too_late(World& world, int rank);
  // A message to these ranks never arrives.
  void lose(const std::vector<int>& receivers, MeetingFaults& faults);
  // Whether it may strike this rank at its call.
  [[nodiscard]] bool is_open(std::size_t index, World& world, int rank, std::uint64_t sequence) const;
  void befall_rank(std::size_t index, World& world, int rank, const Occasion& occasion);
  void befall_collective(std::size_t index, World& world, int rank, const Group& group, std::uint64_t sequence,
                         Call& call);
  void befall_marked(std::size_t index, World& world, const Group& group, std::uint64_t sequence, const Call& call,
                     MeetingFaults& faults);
  void befall_traffic(std::size_t index, World& world, const Group& group, std::uint64_t sequence, const Call& call,
                      const VisitLinks& visit_links, int joined, LinkDelays& on_links, MeetingFaults& faults);

  const std::vector<Fault> plan_;
  const FaultInjectorOptions options_;
  std::deque<State> states_;  // by fault
  std::atomic<bool> wants_restart_{false};
  Mutex strike_mutex_;
  Mutex mutex_;
  std::vector<int> cut_off_ ACCEL_GUARDED_BY(mutex_);  // ranks whose message was lost
  std::vector<int> late_ ACCEL_GUARDED_BY(mutex_);     // ranks that pause beyond the timeout
};

}  // namespace accel::sim
