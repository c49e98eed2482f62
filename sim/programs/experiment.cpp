#include "sim/programs/experiment.hpp"

#include <yaml-cpp/yaml.h>

#include <cmath>

#include "reference/config/yaml_file.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

const auto at_least_zero = [](const auto& value) { return value >= 0; };
const auto at_least_one = [](const auto& value) { return value >= 1; };
const auto finite_at_least_zero = [](const double& value) { return std::isfinite(value) && value >= 0; };

void apply_override(YAML::Node root, const std::string& text) {
  const auto equals = text.find('=');
  check_config(equals != std::string::npos && equals > 0, "--set: expected key.path=value, got '{}'", text);
  YAML::Node value;
  try {
    value = YAML::Load(text.substr(equals + 1));
  } catch (const YAML::Exception& error) {
    throw ConfigError(fmt::format("--set {}: the value is not YAML: {}", text, error.what()));
  }
  std::string rest = text.substr(0, equals);
  // YAML::Node is a reference: `reset` moves on without assigning.
  YAML::Node node(root);
  for (auto dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    auto child = node[rest.substr(0, dot)];
    check_config(!child.IsDefined() || child.IsNull() || child.IsMap(), "--set {}: '{}' is not a mapping", text, rest.substr(0, dot));
    if (!child.IsDefined() || child.IsNull()) node[rest.substr(0, dot)] = YAML::Node(YAML::NodeType::Map);
    node.reset(node[rest.substr(0, dot)]);
    rest.erase(0, dot + 1);
  }
  node[rest] = value;
}

ModelConfig read_model(YamlReader reader) {
  ModelConfig model;
  model.name = reader.required<std::string>("name", [](const auto& name) { return name == "mlp" || name == "cnn"; }, "mlp or cnn");
  model.dropout = reader.optional<double>("dropout", [](const double& p) { return p >= 0 && p < 1; }, "a number in [0, 1)").value_or(0.0);
  if (model.name != "cnn") model.hidden = reader.optional<std::int64_t>("hidden", at_least_one, "1 or more").value_or(128);
  reader.finish_keys();
  return model;
}

OptimizerConfig read_optimizer(YamlReader reader) {
  OptimizerConfig optimizer;
  optimizer.name = reader.required<std::string>("name", [](const auto& n) { return n == "sgd" || n == "adam" || n == "adamw"; }, "sgd, adam or adamw");
  optimizer.lr = reader.required<double>("lr", finite_at_least_zero, "a number of 0 or more");
  if (optimizer.name == "sgd") optimizer.momentum = reader.optional<double>("momentum", finite_at_least_zero, "a number of 0 or more").value_or(0.0);
  if (optimizer.name != "adam") {
    optimizer.weight_decay = reader.optional<double>("weight_decay", finite_at_least_zero, "a number of 0 or more").value_or(optimizer.name == "adamw" ? 0.01 : 0.0);
  }
  reader.finish_keys();
  return optimizer;
}

SchedulerConfig read_scheduler(YamlReader reader) {
  SchedulerConfig scheduler;
  scheduler.name = reader.required<std::string>("name", [](const auto& n) { return n == "linear" || n == "step"; }, "linear or step");
  if (scheduler.name == "step") {
    scheduler.step_size = reader.required<int>("step_size", at_least_one, "1 or more");
    scheduler.gamma = reader.optional<double>("gamma", finite_at_least_zero, "a number of 0 or more").value_or(0.1);
  } else {
    scheduler.warmup_steps = reader.required<int>("warmup_steps", at_least_zero, "0 or more");
    scheduler.total_steps = reader.required<int>("total_steps", at_least_one, "1 or more");
  }
  reader.finish_keys();
  return scheduler;
}

void read_accelerator(YamlReader reader, AcceleratorOptions& options) {
  options.mixed_precision = reader.optional<std::string>("mixed_precision", [](const auto& p) { return p == "no" || p == "bf16"; }, "no or bf16 (fp16 and fp8 are not built yet)");
  options.gradient_accumulation_steps = reader.optional<int>("gradient_accumulation_steps", at_least_one, "1 or more").value_or(1);
  options.split_batches = reader.optional<bool>("split_batches");
  options.step_scheduler_with_optimizer = reader.optional<bool>("step_scheduler_with_optimizer").value_or(true);
  options.device_placement = reader.optional<bool>("device_placement").value_or(true);
  if (const auto types = reader.optional<std::vector<std::string>>("rng_types")) options.rng_types = *types;
  reader.finish_keys();
}

void read_dataloader(YamlReader reader, DataLoaderConfiguration& config) {
  config.split_batches = reader.optional<bool>("split_batches").value_or(false);
  config.even_batches = reader.optional<bool>("even_batches").value_or(true);
  config.use_seedable_sampler = reader.optional<bool>("use_seedable_sampler").value_or(false);
  config.data_seed = reader.optional<std::int64_t>("data_seed");
  config.non_blocking = reader.optional<bool>("non_blocking").value_or(false);
  config.dispatch_batches = reader.optional<bool>("dispatch_batches");
  config.use_stateful_dataloader = reader.optional<bool>("use_stateful_dataloader").value_or(false);
  config.order = reader.optional<std::string>("order", [](const std::string& v) { return v == "accelerate" || v == "elastic"; }, "accelerate or elastic").value_or(config.order);
  reader.finish_keys();
}

}  // namespace

Experiment read_experiment(const std::string& file, const std::vector<std::string>& overrides, int num_ranks) {
  YamlProblems problems(file);
  auto root = load_yaml(file, "an experiment file", problems);
  if (root.IsMap()) {
    for (const auto& text : overrides) apply_override(root, text);
  }

  YamlReader reader(root, "", problems);
  Experiment experiment;
  experiment.task = reader.required<std::string>("task", [](const auto& name) { return name == "fashion_mnist"; }, "fashion_mnist");
  experiment.data_dir = reader.optional<std::string>("data_dir").value_or(experiment.data_dir);
  experiment.limit = reader.optional<std::int64_t>("limit", at_least_one, "1 or more");
  experiment.eval_limit = reader.optional<std::int64_t>("eval_limit", at_least_one, "1 or more");
  for (const auto* key : {"model", "optimizer"}) {
    if (!reader.has(key)) reader.missing(key);
  }
  auto model = reader.mapping("model");
  if (reader.has("model")) experiment.model = read_model(std::move(model));
  auto optimizer = reader.mapping("optimizer");
  if (reader.has("optimizer")) experiment.optimizer = read_optimizer(std::move(optimizer));
  auto scheduler = reader.mapping("scheduler");
  if (reader.has("scheduler")) experiment.scheduler = read_scheduler(std::move(scheduler));
  experiment.batch_size = reader.required<std::int64_t>("batch_size", at_least_one, "1 or more");
  experiment.eval_batch_size = reader.optional<std::int64_t>("eval_batch_size", at_least_one, "1 or more").value_or(experiment.batch_size);
  experiment.shuffle = reader.optional<bool>("shuffle").value_or(true);
  experiment.drop_last = reader.optional<bool>("drop_last").value_or(false);
  experiment.epochs = reader.required<int>("epochs", at_least_one, "1 or more");
  experiment.max_steps = reader.optional<std::int64_t>("max_steps", at_least_one, "1 or more");
  experiment.seed = static_cast<std::uint64_t>(reader.required<std::int64_t>("seed", at_least_zero, "0 or more"));
  experiment.clip_grad_norm = reader.optional<double>("clip_grad_norm", [](const double& v) { return v > 0; }, "a number above 0");
  read_accelerator(reader.mapping("accelerator"), experiment.accelerator);
  read_dataloader(reader.mapping("dataloader_config"), experiment.accelerator.dataloader_config);
  if (experiment.accelerator.splits() && !problems.any()) {
    for (const auto& [key, size] : {std::pair{"batch_size", experiment.batch_size}, {"eval_batch_size", experiment.eval_batch_size}}) {
      if (size % num_ranks != 0) reader.problem(key, fmt::format("split_batches: a batch of {} does not divide by {} ranks; expected a multiple of {}", size, num_ranks, num_ranks));
    }
  }
  reader.finish_keys();
  problems.throw_if_any();
  return experiment;
}

}  // namespace accel::programs
