#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"

/// Seeds and the synchronisation of random states over ranks. Thread rule: the rank's own thread.
/// Source: accelerate/utils/random.py.
namespace accel {

struct SetSeedOptions {
  bool device_specific = false;  ///< adds the global rank, so that ranks draw different streams
};

/// Seeds the current rank's default CPU generator, and its device's generator if it has a GPU.
void set_seed(std::uint64_t seed, SetSeedOptions options = {});

/// Every rank's generator takes the state of rank 0's. Collective over the world.
void synchronize_generator(RankContext& context, at::Generator generator);

/// `type`: "torch" (the default CPU generator) or "cuda" (the current device's). Collective over the world.
/// Throws ArgumentError for another name, "generator" included, which needs the generator itself.
void synchronize_rng_state(RankContext& context, const std::string& type);
void synchronize_rng_state(const std::string& type);

/// The types in order; "generator" means `generator`. Throws ArgumentError if it is asked for and undefined.
void synchronize_rng_states(const std::vector<std::string>& types, at::Generator generator = {});

}  // namespace accel
