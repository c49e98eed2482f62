#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/options.hpp"

namespace accel::programs {

struct ModelConfig {
  std::string name;  // mlp | cnn
  std::int64_t hidden = 128;
  double dropout = 0.0;
};

struct OptimizerConfig {
  std::string name;  // sgd | adam | adamw
  double lr = 0.0;
  double momentum = 0.0;
  double weight_decay = 0.0;
};

struct SchedulerConfig {
  std::string name;  // linear | step
  int warmup_steps = 0, total_steps = 0;
  int step_size = 1;
  double gamma = 0.1;
};

/// A training run as data: one experiment file, checked.
struct Experiment {
  std::string task;
  std::string data_dir = "/usr/share/datasets/fashion-mnist";
  std::optional<std::int64_t> limit, eval_limit;
  ModelConfig model;
  OptimizerConfig optimizer;
  std::optional<SchedulerConfig> scheduler;
  std::int64_t batch_size = 1, eval_batch_size = 1;
  bool shuffle = true, drop_last = false;
  int epochs = 1;
  std::optional<std::int64_t> max_steps;
  std::uint64_t seed = 0;
  std::optional<double> clip_grad_norm;
  AcceleratorOptions accelerator;
};

/// Reads a file, with `key.path=value` overrides. Throws ConfigError with all problems, each with file and line; also for
/// what depends on the number of ranks (split_batches).
Experiment read_experiment(const std::string& file, const std::vector<std::string>& overrides, int num_ranks);

}  // namespace accel::programs
