#include "reference/state/seeded_random.hpp"

#include "reference/state/rank_context.hpp"
#include "reference/state/rng_sync.hpp"

namespace accel {

SeededRandom::SeededRandom(std::uint64_t seed) : scope_(make_generator(seed)) {
  const auto* context = find_current_rank();
  if (context == nullptr || context->device.is_cpu()) return;
  device_ = device_generator(*context);
  state_of_device_ = device_->get_state();
  device_->set_current_seed(seed);
}

SeededRandom::~SeededRandom() {
  if (device_) device_->set_state(state_of_device_);
}

}  // namespace accel
