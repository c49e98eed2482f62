// Reads experiment files strictly: unknown keys, wrong types and impossible combinations are all collected and reported
// together, each with its line, before any data is loaded or any rank starts.
#include "sim/programs/experiments/experiment.hpp"

#include <fmt/ranges.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iterator>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/experiments/accelerator_config.hpp"

namespace accel::programs {
namespace {

constexpr const char* kTasks[] = {"fashion_mnist", "cifar_like", "char_gpt"};

// Overrides change the parsed document before it is read, so that they go through the same checks as the file. Missing
// mappings on the path are created, because an optional section may be absent from the file.
void apply_override(YAML::Node root, const std::string& text) {
  const auto equals = text.find('=');
  check_config(equals != std::string::npos && equals > 0, "--set: expected key.path=value, got '{}'", text);
  YAML::Node value;
  try {
    value = yaml_of(text.substr(equals + 1), "the value");
  } catch (const ConfigError& error) {
    throw ConfigError(fmt::format("--set {}: {}; quote it to pass it as text", text, error.what()));
  }
  std::string rest = text.substr(0, equals);
  // A YAML::Node is a reference into the document. Assignment would overwrite the node in the document, whereas `reset`
  // makes this variable refer to another one.
  YAML::Node node(root);
  for (auto dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    auto child = node[rest.substr(0, dot)];
    check_config(!child.IsDefined() || child.IsNull() || child.IsMap(),
                 "--set {}: '{}' is not a mapping; expected a path through mappings, such as optimizer.lr=0.1", text,
                 rest.substr(0, dot));
    if (!child.IsDefined() || child.IsNull()) node[rest.substr(0, dot)] = YAML::Node(YAML::NodeType::Map);
    node.reset(node[rest.substr(0, dot)]);
    rest.erase(0, dot + 1);
  }
  node[rest] = value;
}

// YamlReader reads signed integers of 64 bits, so seeds in files are limited to the non-negative ones.
std::uint64_t read_seed(YamlReader& reader, bool is_required) {
  const auto seed = is_required ? reader.required<std::int64_t>("seed", at_least_zero)
                                : reader.optional<std::int64_t>("seed", at_least_zero).value_or(0);
  return static_cast<std::uint64_t>(seed);
}

TextGenerationConfig read_sample(YamlReader reader) {
  TextGenerationConfig sample;
  reader.read(Field{"length", at_least_one}, sample.length);
  const auto is_text = [](const std::string& text) { return !text.empty(); };
  sample.prompt = reader.optional<std::string>("prompt", is_text, "a non-empty text").value_or(sample.prompt);
  reader.read(Field{"temperature", finite_above_zero}, sample.temperature);
  reader.read(Field{"top_k", at_least_one}, sample.top_k);
  sample.seed = read_seed(reader, /*is_required=*/false);
  reader.finish_keys();
  return sample;
}

ElasticOptions read_elastic(YamlReader reader) {
  ElasticOptions elastic;
  elastic.logical_ranks = reader.required<int>("logical_ranks", at_least_one);
  elastic.min_ranks = reader.optional<int>("min_ranks");
  reader.finish_keys();
  return elastic;
}

// Each task has its own keys. If the name is unknown, the keys of all tasks are accepted: reporting them as unknown
// would bury the actual problem.
void read_task(YamlReader& reader, Experiment& experiment) {
  const auto is_known = [](const auto& name) {
    return std::find(std::begin(kTasks), std::end(kTasks), name) != std::end(kTasks);
  };
  experiment.task = reader.required<std::string>("task", is_known, fmt::format("{}", fmt::join(kTasks, " or ")));
  if (experiment.task != "char_gpt") reader.read(Field{"data_dir"}, experiment.data_dir);
  if (experiment.task == "char_gpt" || !is_known(experiment.task)) {
    reader.read(Field{"data_file"}, experiment.data_file);
    auto sample = reader.mapping("sample");
    if (reader.has("sample")) experiment.sample = read_sample(std::move(sample));
  }
  reader.read(Field{"limit", at_least_one}, experiment.limit);
  reader.read(Field{"eval_limit", at_least_one}, experiment.eval_limit);
}

}  // namespace

std::int64_t micro_batches_of(const AcceleratorOptions& options) {
  const auto& plugin = options.gradient_accumulation_plugin;
  return plugin && plugin->num_steps ? *plugin->num_steps : options.gradient_accumulation_steps;
}

Experiment read_experiment(const std::string& file, const std::vector<std::string>& overrides, int num_ranks) {
  YamlProblems problems(file);
  auto root = load_yaml(file, "an experiment file", problems);
  // A file that is not a mapping is reported by the reader; overrides would only obscure that.
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
  experiment.batch_size = reader.required<std::int64_t>("batch_size", at_least_one);
  experiment.eval_batch_size =
      reader.optional<std::int64_t>("eval_batch_size", at_least_one).value_or(experiment.batch_size);
  reader.read(Field{"shuffle"}, experiment.shuffle);
  reader.read(Field{"drop_last"}, experiment.drop_last);
  experiment.epochs = reader.required<int>("epochs", at_least_one);
  reader.read(Field{"max_steps", at_least_one}, experiment.max_steps);
  experiment.seed = read_seed(reader, /*is_required=*/true);
  reader.read(Field{"clip_grad_norm", above_zero}, experiment.clip_grad_norm);
  reader.read(Field{"clip_grad_value", above_zero}, experiment.clip_grad_value);
  read_accelerator(reader.mapping("accelerator"), experiment.accelerator);
  if (experiment.clip_grad_value && (experiment.accelerator.fsdp_plugin || experiment.accelerator.deepspeed_plugin)) {
    reader.problem("clip_grad_value",
                   "unsupported with fsdp_plugin or deepspeed_plugin, as in Accelerate; use clip_grad_norm");
  }
  read_dataloader(reader.mapping("dataloader_config"), experiment.accelerator.dataloader_config);
  read_pipeline(reader.mapping("pipeline"), experiment.pipeline);
  const auto& mesh = experiment.accelerator.parallelism_config;
  if (reader.has("pipeline") && !(mesh && mesh->pp_size > 1))
    reader.problem("pipeline", "has an effect with accelerator.parallelism_config.pp_size above 1 only");
  auto elastic = reader.mapping("elastic");
  if (reader.has("elastic")) {
    experiment.elastic = read_elastic(std::move(elastic));
    const auto& options = experiment.accelerator;
    if (options.fsdp_plugin || options.deepspeed_plugin || options.megatron_lm_plugin || mesh)
      reader.problem("elastic", "expected no plugin and no mesh: every rank holds the complete model");
    if (micro_batches_of(options) != 1)
      reader.problem("elastic", "expected no gradient accumulation; use more logical ranks");
    if (options.splits()) reader.problem("elastic", "expected no split_batches: batch_size is that of a logical rank");
    if (experiment.scheduler && experiment.scheduler->follows_metric())
      reader.problem("elastic", "expected a schedule that follows no metric");
    if (experiment.elastic->logical_ranks < num_ranks)
      reader.problem("elastic", fmt::format("{} logical ranks for {} ranks; expected at least one for each",
                                            experiment.elastic->logical_ranks, num_ranks));
    if (const auto least = experiment.elastic->min_ranks.value_or(1); least < 1 || least > num_ranks)
      reader.problem("elastic",
                     fmt::format("min_ranks: expected 1 to {}, the number of ranks, got {}", num_ranks, least));
  }
  // Checked only if the file is otherwise valid: a missing batch_size would produce a second, meaningless message.
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
