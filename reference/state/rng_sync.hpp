#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"

/// Seeding and synchronization of random states between ranks. Thread rule: the rank's own thread.
/// Source: accelerate/utils/random.py.
namespace accel {

struct SetSeedOptions {
  bool device_specific = false;  ///< adds the global rank, so that ranks draw different streams
  /// Operators without a deterministic algorithm throw from now on. Holds for the process, as
  /// torch.use_deterministic_algorithms does.
  bool deterministic = false;
};

/// Seeds the current rank's default CPU generator, and its device's generator if it has a GPU.
void set_seed(std::uint64_t seed, SetSeedOptions options = {});

/// Returns the default generator of the rank's device.
[[nodiscard]] at::Generator device_generator(const RankContext& context);

/// Sets every rank's generator to the state of rank 0's. Collective over the world.
void synchronize_generator(RankContext& context, at::Generator generator);

/// Synchronizes one generator. `type` is "torch" (the default CPU generator) or "cuda" (that of the current device).
/// Collective over the world. Throws ArgumentError for other names, including "generator", which requires the
/// generator itself.
void synchronize_rng_state(RankContext& context, const std::string& type);
void synchronize_rng_state(const std::string& type);

/// Synchronizes several generators in order; "generator" stands for `generator`. Throws ArgumentError if that is
/// undefined.
void synchronize_rng_states(const std::vector<std::string>& types, at::Generator generator = {});

}  // namespace accel
