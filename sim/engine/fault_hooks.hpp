#pragma once

#include "sim/engine/faults.hpp"

namespace accel::sim {

/// Calls the fault model of a world, if there is one, at each point where something can go wrong.
class FaultHooks {
 public:
  FaultHooks(World& world, FaultModel* model) : world_(world), model_(model) {}

  void before_call(int rank, const EngineGroup& group, std::uint64_t sequence, Call& call) const {
    if (model_ != nullptr) model_->before_call(world_, rank, group, sequence, call);
  }
  [[nodiscard]] MeetingFaults on_meeting(const EngineGroup& group, std::uint64_t sequence, const Call& call) const {
    return model_ != nullptr ? model_->on_meeting(world_, group, sequence, call) : MeetingFaults{};
  }
  void before_message(int rank, const EngineGroup& group, std::uint64_t sequence, const Call& call) const {
    if (model_ != nullptr) model_->before_message(world_, rank, group, sequence, call);
  }
  [[nodiscard]] MeetingFaults on_message(const EngineGroup& group, int source, int destination, std::uint64_t sequence,
                                         const Call& call) const {
    return model_ != nullptr ? model_->on_message(world_, group, source, destination, sequence, call) : MeetingFaults{};
  }
  void at_point(int rank, StepPoint point, std::int64_t step) const {
    if (model_ != nullptr) model_->at_point(world_, rank, point, step);
  }
  /// Returns whether the model has released the ranks.
  [[nodiscard]] bool on_quiescence() const { return model_ != nullptr && model_->on_quiescence(world_); }

 private:
  World& world_;
  FaultModel* model_;  // null: nothing goes wrong
};

}  // namespace accel::sim
