#pragma once

#include <string>

#include "sim/predict/training_run.hpp"
#include "sim/programs/experiments/experiment.hpp"

namespace accel::programs {

/// An experiment as the description of a run on GPUs of a kind, for `sim-run layouts --gpu`. Its layout has no meaning.
/// Throws ConfigError for a model other than gpt.
[[nodiscard]] predict::TrainingRun described(const Experiment& experiment, int num_gpus, const std::string& gpu);

}  // namespace accel::programs
