// Connects a rank's Accelerator to the simulator: the library reports phases and steps through StepObserver and
// does not know which backend listens.
#include "sim/backend/sim_observer.hpp"

#include <ATen/record_function.h>

#include "reference/comm/tensor_fingerprint.hpp"
#include "reference/rank_local/random.hpp"

namespace accel::sim {

// Reading the loss is the simulator's own work, so the operator clock must not charge it.
void SimObserver::begin_backward(const at::Tensor& loss) {
  if (recorder_ && loss.numel() > 0) {
    const at::DisableRecordFunctionGuard no_clock;
    recorder_->add_loss(rank_, loss.detach().flatten()[0].item<double>());
  }
  world_->reach(rank_, StepPoint::kBackward);
}

// Compares every prepared model, whether or not this update changed its parameters: a rank that bypasses the
// gradients' all-reduce trains a different model. Models that keep their gradients local are left out.
void SimObserver::after_update() {
  world_->reach(rank_, StepPoint::kUpdated);
  const auto models = compared_models(replicas_);
  if (models.empty()) return;
  const at::DisableRecordFunctionGuard no_clock;
  auto states = states_of(models);
  if (recorder_) recorder_->add_update(rank_, names_of(models), states);
  replicas_compared_->submit(rank_, std::move(states), parts_of(models), stage_rank_of(models),
                             fingerprint(default_generator()),
                             [&](std::size_t place) { return describe_parameter(models, place); });
  world_->clocks().discard_compute(rank_);  // the comparison is not part of the program
}

}  // namespace accel::sim
