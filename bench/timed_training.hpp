#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/experiments/train_experiment.hpp"

namespace accel::bench {

/// WARM_UP_STEPS of accelerate_training.py.
constexpr int kWarmUpSteps = 10;

/// Trains `steps` micro-batches of an experiment file after a warm-up, whose time is left out of the result. `captures`
/// replays them as a CUDA graph, of which the warm-up contains the capture.
inline programs::RankResult timed_training(RankContext& rank, const std::string& file, int steps,
                                           std::vector<std::string> overrides = {}, bool captures = false) {
  overrides.push_back(fmt::format("max_steps={}", kWarmUpSteps + steps));
  const auto experiment = programs::read_experiment(file, overrides, rank.world_size);
  programs::RankResult result;
  programs::TrainOptions options{.warm_up_steps = kWarmUpSteps};
  if (captures) options.capture_after = kWarmUpSteps - 2;
  programs::train_experiment(rank, experiment, programs::load_task(experiment), options, result);
  return result;
}

}  // namespace accel::bench
