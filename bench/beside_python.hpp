#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace accel::bench {

/// The jobs to compare: the mlp at batch 32 on one rank, the same on 2 and 4 processes over Gloo, and language models
/// of four sizes on one rank.
enum class PythonJobs { kOneRank, kGloo, kLanguage };

/// Measures steps per second of the same experiments here and under Accelerate, alternately in one run. `python` is a
/// command that runs bench/accelerate_training.py.
nlohmann::ordered_json measure_beside_python(const std::string& python, int rounds, PythonJobs jobs);

}  // namespace accel::bench
