#pragma once

#include <memory>
#include <vector>

#include "reference/state/step_observer.hpp"
#include "sim/backend/replica_models.hpp"
#include "sim/engine/world.hpp"
#include "sim/ranks/step_recorder.hpp"

namespace accel::sim {

/// Reports one simulated rank's training: phases to the clocks, steps to the faults, replicas to the comparison.
class SimObserver : public StepObserver {
 public:
  /// `recorder`: null to record nothing.
  SimObserver(std::shared_ptr<World> world, std::shared_ptr<ReplicaComparison> comparison,
              std::shared_ptr<StepRecorder> recorder, int rank)
      : world_(std::move(world)),
        replicas_compared_(std::move(comparison)),
        recorder_(std::move(recorder)),
        rank_(rank) {}

  std::string_view enter_phase(std::string_view phase) override { return world_->clocks().enter_phase(rank_, phase); }
  void begin_backward(const at::Tensor& loss) override;
  void add_replicas(const std::shared_ptr<const Replicas>& replicas) override { replicas_.push_back(replicas); }
  void before_update() override { world_->reach(rank_, StepPoint::kUpdate); }
  void after_update() override;
  [[nodiscard]] std::vector<std::string> take_collectives() override { return world_->take_calls_of(rank_); }
  void end_join() override { replicas_compared_->begin_interval(rank_); }

 private:
  std::shared_ptr<World> world_;
  std::shared_ptr<ReplicaComparison> replicas_compared_;
  std::shared_ptr<StepRecorder> recorder_;
  int rank_;
  std::vector<std::weak_ptr<const Replicas>> replicas_;  // of all prepared models
};

}  // namespace accel::sim
