#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace accel::bench {

/// Steps per second of experiments here and under Accelerate, side by side in one run: the mlp at batch 32 on one rank and on
/// 2 and 4 processes over Gloo, a language model of two sizes on one rank. `python` runs bench/accelerate_training.py.
nlohmann::ordered_json measure_beside_python(const std::string& python, int rounds);

}  // namespace accel::bench
