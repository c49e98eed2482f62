#pragma once

#include <memory>
#include <string>
#include <vector>

#include "sim/engine/faults.hpp"
#include "sim/faults/fault.hpp"
#include "sim/faults/fault_effect.hpp"

/// Applies a plan of faults to a world of simulated ranks.
///
///     auto plan = plan_faults(read_faults("faults.yaml", num_ranks), num_ranks);
///     simulate({.num_ranks = num_ranks, .faults = std::make_shared<FaultInjector>(plan)}, body);
///
/// Every rank then sees what real Gloo shows; see sim/faults/README.md. One injector serves one run and its restarts.
///
/// Thread rule: like FaultModel.
namespace accel::sim {

class FaultInjector : public FaultModel {
 public:
  explicit FaultInjector(std::vector<Fault> plan, FaultInjectorOptions options = {});

  void before_call(World& world, int rank, const EngineGroup& group, std::uint64_t sequence, Call& call) override;
  MeetingFaults on_meeting(World& world, const EngineGroup& group, std::uint64_t sequence, const Call& call) override;
  void before_message(World& world, int rank, const EngineGroup& group, std::uint64_t sequence,
                      const Call& call) override;
  MeetingFaults on_message(World& world, const EngineGroup& group, int source, int destination, std::uint64_t sequence,
                           const Call& call) override;
  void at_point(World& world, int rank, StepPoint point, std::int64_t step) override;
  double lost_seconds(int rank, double computed_seconds) override;
  void on_rendezvous(World& world, int rank) override;
  std::shared_ptr<Files> files(World& world, int rank, std::shared_ptr<Files> disk) override;
  bool on_quiescence(World& world) override;
  [[nodiscard]] std::optional<ProcessStart> next_start(int rank) override;
  void on_start(World& world, int rank) override;
  bool restarts() override;
  [[nodiscard]] std::vector<std::string> not_struck() const override;

  [[nodiscard]] const std::vector<Fault>& plan() const { return plan_; }

 private:
  // Returns the file faults of a rank that have not struck yet.
  [[nodiscard]] std::vector<Fault> remaining_file_faults(int rank) const;
  // The place in the plan of the fault that starts the rank next.
  [[nodiscard]] std::optional<std::size_t> index_of_start(int rank) const;

  const std::vector<Fault> plan_;
  FaultedRun run_;
  std::vector<std::unique_ptr<FaultEffect>> effects_;  // one per fault of the plan
};

}  // namespace accel::sim
