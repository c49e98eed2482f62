#include "sim/backend/sim_listener.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "reference/core/random.hpp"
#include "sim/backend/fingerprint.hpp"

namespace accel::sim {

// A model that ran forward several times since the last update counts once.
void SimListener::after_update() {
  world_->reach(rank_, StepPoint::kUpdated);
  std::vector<std::shared_ptr<const NamedTensors>> models;
  models.swap(synchronized_);
  NamedTensors parameters;
  for (auto model = models.begin(); model != models.end(); ++model) {
    if (std::find(models.begin(), model, *model) == model) parameters.insert(parameters.end(), (*model)->begin(), (*model)->end());
  }
  if (parameters.empty()) return;
  const at::DisableRecordFunctionGuard no_clock;
  const auto state = default_generator().get_state();
  vote_->cast(rank_, parameters, fingerprint(state.const_data_ptr(), state.nbytes()));
  world_->leave_out(rank_);  // real backends have no vote
}

}  // namespace accel::sim
