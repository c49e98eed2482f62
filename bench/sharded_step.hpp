#pragma once

#include <nlohmann/json.hpp>

namespace accel::bench {

/// Measures a step of a character-level transformer of 12 layers on 8 simulated ranks, under DDP and fully sharded,
/// alternately. "ratio" is that of the times.
nlohmann::ordered_json measure_sharded_step(int rounds);

}  // namespace accel::bench
