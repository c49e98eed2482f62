#pragma once

#include <nlohmann/json.hpp>

namespace accel::bench {

/// Steps a second of a char transformer of 12 layers at 8 simulated ranks, under DDP and fully sharded, in turn; the
/// ratio is of times.
nlohmann::ordered_json measure_sharded_step(int rounds);

}  // namespace accel::bench
