#include "reference/config/options.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

namespace accel {
namespace {

bool is_one_of(const std::string& value, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), value) != names.end();
}

std::vector<std::string> problems_of(const PowerSGDOptions& options) {
  std::vector<std::string> problems;
  const auto expect = [&](bool holds, const char* name, const char* expected, auto value) {
    if (!holds)
      problems.push_back(fmt::format("ddp_kwargs: comm_state_option: {}: expected {}, got {}", name, expected, value));
  };
  expect(options.matrix_approximation_rank >= 1, "matrix_approximation_rank", "1 or more",
         options.matrix_approximation_rank);
  expect(options.start_powerSGD_iter >= 2 || !(options.use_error_feedback || options.warm_start), "start_powerSGD_iter",
         "2 or more with use_error_feedback or warm_start, since buckets are rebuilt after the first step",
         options.start_powerSGD_iter);
  expect(options.min_compression_rate >= 0, "min_compression_rate", "0 or more", options.min_compression_rate);
  expect(options.orthogonalization_epsilon >= 0, "orthogonalization_epsilon", "0 or more",
         options.orthogonalization_epsilon);
  expect(options.random_seed >= 0 && options.random_seed <= 0xFFFF'FFFF, "random_seed", "0 to 4294967295",
         options.random_seed);
  return problems;
}

}  // namespace

std::vector<std::string> problems_of(const DataLoaderConfiguration& config) {
  std::vector<std::string> problems;
  if (config.order != "accelerate" && !config.is_elastic()) {
    problems.push_back(
        fmt::format("dataloader_config: order: expected 'accelerate' or 'elastic', got '{}'", config.order));
  }
  if (config.is_elastic() && !config.even_batches) {
    problems.emplace_back("dataloader_config: order: elastic fills up the last step, and excludes even_batches: false");
  }
  return problems;
}

std::vector<std::string> problems_of(const GradScalerKwargs& kwargs) {
  std::vector<std::string> problems;
  const auto check = [&](bool holds, const char* name, const char* expected, auto value) {
    if (!holds) problems.push_back(fmt::format("grad_scaler_kwargs: {}: expected {}, got {}", name, expected, value));
  };
  check(std::isfinite(kwargs.init_scale) && kwargs.init_scale > 0, "init_scale", "a number above 0", kwargs.init_scale);
  check(std::isfinite(kwargs.growth_factor) && kwargs.growth_factor > 1, "growth_factor", "a number above 1",
        kwargs.growth_factor);
  check(kwargs.backoff_factor > 0 && kwargs.backoff_factor < 1, "backoff_factor", "a number between 0 and 1",
        kwargs.backoff_factor);
  check(kwargs.growth_interval >= 1, "growth_interval", "1 or more", kwargs.growth_interval);
  return problems;
}

std::vector<std::string> problems_of(const DistributedDataParallelKwargs& kwargs) {
  std::vector<std::string> problems;
  const bool is_power_sgd = is_one_of(kwargs.comm_hook, {"power_sgd", "batched_power_sgd"});
  if (!is_power_sgd && !is_one_of(kwargs.comm_hook, {"no", "fp16", "bf16"})) {
    problems.push_back(fmt::format(
        "ddp_kwargs: comm_hook: expected 'no', 'fp16', 'bf16', 'power_sgd' or 'batched_power_sgd', got '{}'",
        kwargs.comm_hook));
  }
  if (!is_one_of(kwargs.comm_wrapper, {"no", "fp16", "bf16"})) {
    problems.push_back(
        fmt::format("ddp_kwargs: comm_wrapper: expected 'no', 'fp16' or 'bf16', got '{}'", kwargs.comm_wrapper));
  } else if (kwargs.comm_hook == "no" && kwargs.comm_wrapper != "no") {
    problems.push_back(
        fmt::format("ddp_kwargs: comm_wrapper: '{}' has no comm_hook to wrap; comm_hook: {} casts gradients",
                    kwargs.comm_wrapper, kwargs.comm_wrapper));
  }
  if (kwargs.bucket_cap_mb.value_or(1) < 1)
    problems.push_back(fmt::format("ddp_kwargs: bucket_cap_mb: expected 1 or more, got {}", *kwargs.bucket_cap_mb));
  if (is_power_sgd) {
    for (auto& problem : problems_of(kwargs.comm_state_option)) problems.push_back(std::move(problem));
  }
  return problems;
}

std::vector<std::string> problems_of_plugins(const AcceleratorOptions& options) {
  std::vector<std::string> problems;
  if (options.deepspeed_plugin && !options.deepspeed_plugins.empty()) {
    problems.emplace_back("deepspeed_plugin and deepspeed_plugins exclude each other; put all into deepspeed_plugins");
  }
  if (options.fsdp_plugin && (options.deepspeed_plugin || !options.deepspeed_plugins.empty())) {
    problems.emplace_back(
        "fsdp_plugin and deepspeed_plugin exclude each other; give the one that is to shard the model");
  }
  return problems;
}

std::vector<std::string> problems_of(const ProjectConfiguration& config) {
  std::vector<std::string> problems;
  if (config.total_limit && *config.total_limit < 1)
    problems.push_back(fmt::format("project_config: total_limit: expected 1 or more, got {}", *config.total_limit));
  if (config.iteration < 0)
    problems.push_back(fmt::format("project_config: iteration: expected 0 or more, got {}", config.iteration));
  if (config.automatic_checkpoint_naming && config.project_dir.empty())
    problems.emplace_back("project_config: automatic_checkpoint_naming needs a project_dir");
  return problems;
}

std::vector<std::string> problems_of(const ProfileKwargs& kwargs) {
  std::vector<std::string> problems;
  for (const auto& activity : kwargs.activities) {
    if (activity != "cpu" && activity != "cuda")
      problems.push_back(fmt::format("activities: '{}'; expected cpu or cuda", activity));
  }
  if (const auto& schedule = kwargs.schedule_option;
      schedule && (std::min({schedule->wait, schedule->warmup, schedule->repeat, schedule->skip_first}) < 0 ||
                   schedule->active <= 0)) {
    problems.push_back(
        fmt::format("schedule_option: wait {}, warmup {}, active {}, repeat {}, skip_first {}; expected active above "
                    "0, and none negative",
                    schedule->wait, schedule->warmup, schedule->active, schedule->repeat, schedule->skip_first));
  }
  if (kwargs.with_stack) problems.emplace_back("with_stack: true; it tells lines of Python, which there are none of");
  if (kwargs.with_modules)
    problems.emplace_back("with_modules: true; it tells TorchScript's modules, which there are none of");
  return problems;
}

}  // namespace accel
