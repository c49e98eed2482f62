#pragma once

#include <memory>
#include <optional>

#include "reference/accelerator/accelerator_state.hpp"
#include "reference/training_state/training_state.hpp"

namespace accel {

/// What all parts of an Accelerator share: its state and the prepared objects. Each part inherits it virtually, so an
/// Accelerator has exactly one.
class AcceleratorBase : public AcceleratorState {
 protected:
  /// Used by the parts only: Accelerator itself constructs the shared virtual base.
  AcceleratorBase() = default;
  AcceleratorBase(AcceleratorOptions options, RankContext& context) : AcceleratorState(std::move(options), context) {}
  // The implicit assignment of an Accelerator may assign the virtual base once per part. A second move would read
  // moved-from members, so this class declares only copies, and moving an Accelerator copies its state.
  AcceleratorBase(const AcceleratorBase&) = default;
  AcceleratorBase& operator=(const AcceleratorBase&) = default;
  ~AcceleratorBase() = default;

  /// Creates the process groups of the mesh and the gradient pipeline. Collective.
  void join_mesh();
  /// The ranks of the world have changed. Throws StateError inside a loop over a prepared loader.
  void follow_world();
  [[nodiscard]] std::shared_ptr<GradientPipeline> make_gradient_pipeline() const;
  [[nodiscard]] bool shards() const { return plugin().sharding.has_value(); }
  [[nodiscard]] std::optional<Autocast::Options> autocast_options(const AutocastKwargs& kwargs) const;

  /// Without borrowed objects whose handles have ended: they may have ended too.
  [[nodiscard]] TrainingState& training() const;

 private:
  void forget_ended() const;
  // The rank's place among those of the mesh.
  void take_place();

  mutable TrainingState training_;
};

}  // namespace accel
