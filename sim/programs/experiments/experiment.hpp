#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/pipeline/pipeline_options.hpp"
#include "sim/programs/experiments/model_config.hpp"
#include "sim/programs/experiments/optimizer_config.hpp"

namespace accel::programs {

/// How to sample text from a trained language model.
struct TextGenerationConfig {
  std::int64_t length = 200;  // bytes after the prompt
  std::string prompt = "\n";
  double temperature = 0.8;
  std::int64_t top_k = 40;  // draw only from this many of the most likely bytes
  std::uint64_t seed = 0;
};

/// A training run as data: the checked contents of one experiment file.
struct Experiment {
  std::string task;
  std::string data_dir = "/usr/share/datasets/fashion-mnist";  // fashion_mnist, cifar_like
  std::string data_file = "/usr/share/common-licenses/GPL-3";  // char_gpt
  std::optional<std::int64_t> limit, eval_limit;
  ModelConfig model;
  OptimizerConfig optimizer;
  std::optional<SchedulerConfig> scheduler;
  std::int64_t batch_size = 1, eval_batch_size = 1;
  bool shuffle = true, drop_last = false;
  int epochs = 1;
  std::optional<std::int64_t> max_steps;
  std::uint64_t seed = 0;
  std::optional<double> clip_grad_norm, clip_grad_value;  // applied in this order, in steps that synchronize gradients
  AcceleratorOptions accelerator;
  PipelineOptions pipeline;                    // with pp_size above 1
  std::optional<ElasticOptions> elastic;       // train in steps of logical ranks
  std::optional<TextGenerationConfig> sample;  // char_gpt
};

/// Reads a file and applies `key.path=value` overrides. Throws ConfigError with all problems, each with file and line,
/// including those that depend on the number of ranks (split_batches).
Experiment read_experiment(const std::string& file, const std::vector<std::string>& overrides, int num_ranks);

/// The number of micro-batches of an optimizer step.
std::int64_t micro_batches_of(const AcceleratorOptions& options);

}  // namespace accel::programs
