#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace accel::bench {

/// The mlp at batch 32 on one rank; on 2 and 4 processes over Gloo; language models of four sizes on one rank.
enum class PythonJobs { kOneRank, kGloo, kLanguage };

/// Steps per second of experiments here and under Accelerate, side by side in one run. `python` runs
/// bench/accelerate_training.py.
nlohmann::ordered_json measure_beside_python(const std::string& python, int rounds, PythonJobs jobs);

}  // namespace accel::bench
