#include "sim/programs/experiments/experiment.hpp"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "reference/config/yaml_file.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/experiments/accelerator_config.hpp"
#include "sim/programs/experiments/key_rules.hpp"

namespace accel::programs {
namespace {

constexpr const char* kTasks[] = {"fashion_mnist", "cifar_like", "char_gpt"};
constexpr auto finite_above_zero = [](const double& value) { return std::isfinite(value) && value > 0; };

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
    check_config(!child.IsDefined() || child.IsNull() || child.IsMap(), "--set {}: '{}' is not a mapping", text,
                 rest.substr(0, dot));
    if (!child.IsDefined() || child.IsNull()) node[rest.substr(0, dot)] = YAML::Node(YAML::NodeType::Map);
    node.reset(node[rest.substr(0, dot)]);
    rest.erase(0, dot + 1);
  }
  node[rest] = value;
}

WritingConfig read_sample(YamlReader reader) {
  WritingConfig sample;
  sample.length = reader.optional<std::int64_t>("length", at_least_one, "1 or more").value_or(sample.length);
  sample.prompt = reader
                      .optional<std::string>(
                          "prompt", [](const auto& text) { return !text.empty(); }, "a text that is not empty")
                      .value_or(sample.prompt);
  sample.temperature =
      reader.optional<double>("temperature", finite_above_zero, "a number above 0").value_or(sample.temperature);
  sample.top_k = reader.optional<std::int64_t>("top_k", at_least_one, "1 or more").value_or(sample.top_k);
  sample.seed =
      static_cast<std::uint64_t>(reader.optional<std::int64_t>("seed", at_least_zero, "0 or more").value_or(0));
  reader.finish_keys();
  return sample;
}

// Each task has keys of its own; one of an unknown name might be any.
void read_task(YamlReader& reader, Experiment& experiment) {
  const auto is_known = [](const auto& name) {
    return std::find(std::begin(kTasks), std::end(kTasks), name) != std::end(kTasks);
  };
  experiment.task = reader.required<std::string>("task", is_known, fmt::format("{}", fmt::join(kTasks, " or ")));
  if (experiment.task != "char_gpt")
    experiment.data_dir = reader.optional<std::string>("data_dir").value_or(experiment.data_dir);
  if (experiment.task == "char_gpt" || !is_known(experiment.task)) {
    experiment.data_file = reader.optional<std::string>("data_file").value_or(experiment.data_file);
    auto sample = reader.mapping("sample");
    if (reader.has("sample")) experiment.sample = read_sample(std::move(sample));
  }
  experiment.limit = reader.optional<std::int64_t>("limit", at_least_one, "1 or more");
  experiment.eval_limit = reader.optional<std::int64_t>("eval_limit", at_least_one, "1 or more");
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
  read_task(reader, experiment);
  for (const auto* key : {"model", "optimizer"}) {
    if (!reader.has(key)) reader.missing(key);
  }
  auto model = reader.mapping("model");
  if (reader.has("model")) experiment.model = read_model(std::move(model), experiment.task);
  auto optimizer = reader.mapping("optimizer");
  if (reader.has("optimizer")) experiment.optimizer = read_optimizer(std::move(optimizer));
  auto scheduler = reader.mapping("scheduler");
  if (reader.has("scheduler")) experiment.scheduler = read_scheduler(std::move(scheduler));
  experiment.batch_size = reader.required<std::int64_t>("batch_size", at_least_one, "1 or more");
  experiment.eval_batch_size =
      reader.optional<std::int64_t>("eval_batch_size", at_least_one, "1 or more").value_or(experiment.batch_size);
  experiment.shuffle = reader.optional<bool>("shuffle").value_or(true);
  experiment.drop_last = reader.optional<bool>("drop_last").value_or(false);
  experiment.epochs = reader.required<int>("epochs", at_least_one, "1 or more");
  experiment.max_steps = reader.optional<std::int64_t>("max_steps", at_least_one, "1 or more");
  experiment.seed = static_cast<std::uint64_t>(reader.required<std::int64_t>("seed", at_least_zero, "0 or more"));
  for (const auto& [key, most] :
       {std::pair{"clip_grad_norm", &experiment.clip_grad_norm}, {"clip_grad_value", &experiment.clip_grad_value}}) {
    *most = reader.optional<double>(
        key, [](const double& v) { return v > 0; }, "a number above 0");
  }
  read_accelerator(reader.mapping("accelerator"), experiment.accelerator);
  if (experiment.clip_grad_value && (experiment.accelerator.fsdp_plugin || experiment.accelerator.deepspeed_plugin)) {
    reader.problem("clip_grad_value", "not with fsdp_plugin or deepspeed_plugin, as in Accelerate; use clip_grad_norm");
  }
  read_dataloader(reader.mapping("dataloader_config"), experiment.accelerator.dataloader_config);
  if (experiment.accelerator.splits() && !problems.any()) {
    for (const auto& [key, size] :
         {std::pair{"batch_size", experiment.batch_size}, {"eval_batch_size", experiment.eval_batch_size}}) {
      if (size % num_ranks != 0)
        reader.problem(
            key, fmt::format("split_batches: a batch of {} does not divide by {} ranks; expected a multiple of {}",
                             size, num_ranks, num_ranks));
    }
  }
  reader.finish_keys();
  problems.throw_if_any();
  return experiment;
}

}  // namespace accel::programs
