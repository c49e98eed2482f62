#include "reference/state/rng_sync.hpp"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include "reference/core/errors.hpp"

namespace accel {

at::Generator device_generator(const RankContext& context) {
  return at::globalContext().defaultGenerator(context.device);
}

// Source: accelerate/utils/random.py, set_seed. Seeds the rank's generators only; Python's, NumPy's and the
// generators of other devices do not exist here.
void set_seed(std::uint64_t seed, SetSeedOptions options) {
  auto& context = current_rank();
  if (options.device_specific) seed += static_cast<std::uint64_t>(context.seed_index.value_or(context.rank));
  default_generator().set_current_seed(seed);
  if (!context.device.is_cpu()) device_generator(context).set_current_seed(seed);
  if (options.deterministic) at::globalContext().setDeterministicAlgorithms(true, /*warn_only=*/false);
}

void synchronize_generator(RankContext& context, at::Generator generator) {
  auto state = generator.get_state();
  context.world.broadcast(state, /*root=*/0).wait();
  generator.set_state(state);
}

// Source: accelerate/utils/random.py, synchronize_rng_state, without the types of other devices.
void synchronize_rng_state(RankContext& context, const std::string& type) {
  if (type == "torch") {
    synchronize_generator(context, default_generator());
  } else if (type == "cuda") {
    check_argument(!context.device.is_cpu(),
                   "synchronize_rng_state: 'cuda' requires a GPU, but this rank has none; use 'torch'");
    synchronize_generator(context, device_generator(context));
  } else {
    throw ArgumentError(fmt::format(
        "synchronize_rng_state: expected 'torch', 'cuda' or, with a generator, 'generator'; got '{}'", type));
  }
}

void synchronize_rng_state(const std::string& type) { synchronize_rng_state(current_rank(), type); }

// One broadcast per type, in the given order, which must be equal on all ranks.
void synchronize_rng_states(const std::vector<std::string>& types, at::Generator generator) {
  for (const auto& type : types) {
    if (type == "generator") {
      check_argument(
          generator.defined(),
          "synchronize_rng_states: 'generator' requires a generator, but the argument `generator` is undefined");
      synchronize_generator(current_rank(), generator);
    } else {
      synchronize_rng_state(type);
    }
  }
}

}  // namespace accel
