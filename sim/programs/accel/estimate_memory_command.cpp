// `accel estimate-memory`: computes sizes from the headers of a weights file; no weights are loaded, so a model larger
// than this machine's memory can be estimated. The first table follows Accelerate's command, the second one adds
// sharded training, computed by the same planner that the sharded engine uses.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <c10/util/accumulate.h>
#include <iostream>
#include <nlohmann/json.hpp>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/sharded/memory_plan.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using Weights = std::map<std::string, StoredWeight>;

struct EstimateArguments {
  std::string path, sharding;
  std::vector<std::string> dtypes{"float32", "float16", "int8", "int4"}, wrap;
  std::vector<int> ranks;
  bool json = false;
};

// int4 packs two elements into a byte, hence the double.
const std::map<std::string, double> kBytesPerElement{
    {"float32", 4}, {"float16", 2}, {"bfloat16", 2}, {"int8", 1}, {"int4", 0.5}};

struct Sizes {
  std::int64_t total = 0, largest_layer = 0;  // elements
};

// A layer is a module that directly owns tensors; their names share everything up to the last dot.
Sizes sizes_of(const Weights& weights) {
  Sizes sizes;
  std::map<std::string, std::int64_t> layers;
  for (const auto& [name, weight] : weights) {
    const auto numel = c10::multiply_integers(weight.sizes);
    sizes.total += numel;
    auto& layer = layers[name.substr(0, name.rfind('.') == std::string::npos ? 0 : name.rfind('.'))];
    layer += numel;
    sizes.largest_layer = std::max(sizes.largest_layer, layer);
  }
  return sizes;
}

// Returns the peak memory of training with Adam: weights, gradients and two moments. Nothing for integer dtypes, which
// cannot be trained. Source: accelerate/utils/modeling.py, estimate_training_usage.
std::optional<double> training_bytes(const std::string& dtype, std::int64_t numel) {
  if (dtype.starts_with("int")) return std::nullopt;
  return (dtype == "float32" ? 16.0 : 8.0) * static_cast<double>(numel);
}

// Inserts a parameter at a dotted path and creates the modules on the way. `path` is relative to `module`.
void add_module(ModuleDescription& module, const std::string& path, std::size_t parameter) {
  const auto dot = path.find('.');
  if (dot == std::string::npos) {
    module.parameters.push_back(parameter);
    return;
  }
  // As in a Sequential or a ModuleList.
  if (path.find_first_not_of("0123456789") == dot) module.is_container = true;
  const auto name = (module.name.empty() ? "" : module.name + ".") + path.substr(0, dot);
  auto child = std::find_if(module.children.begin(), module.children.end(),
                            [&](const auto& other) { return other.name == name; });
  if (child == module.children.end()) child = module.children.insert(child, {.name = name, .class_name = "Module"});
  add_module(*child, path.substr(dot + 1), parameter);
}

// Rebuilds the module tree from the dots in parameter names. The classes are unknown, so --wrap selects modules by
// name, and modules with numbers for names count as elements. Training is assumed to be in float32.
// The planner needs only shapes and dtypes, so no module is created and no weight is read.
ModelDescription describe(const Weights& weights) {
  ModelDescription model;
  model.root.class_name = "Module";
  for (const auto& [name, weight] : weights) {
    add_module(model.root, name, model.parameters.size());
    model.parameters.push_back({.shape = {name, weight.sizes}, .dtype = "float32"});
  }
  return model;
}

// Both kinds of plugin resolve to the same options as in training, so that defaults (e.g. of wrapping) apply here, too.
ShardingOptions sharding_of(const EstimateArguments& arguments, std::vector<std::string>& problems) {
  ResolvedPlugin plugin;
  if (arguments.sharding.starts_with("zero")) {
    const std::map<std::string, int> stages{{"zero1", 1}, {"zero2", 2}, {"zero3", 3}};
    const auto stage = stages.find(arguments.sharding);
    if (stage == stages.end())
      problems.push_back(fmt::format(
          "--sharding: unknown strategy '{}'; expected zero1, zero2, zero3 or a strategy of FSDP", arguments.sharding));
    else
      plugin = resolve(DeepSpeedPlugin{.zero_stage = stage->second}, "no", problems);
  } else {
    plugin = resolve(FullyShardedDataParallelPlugin{.sharding_strategy = arguments.sharding}, "no", problems);
  }
  auto options = plugin.sharding.value_or(ShardingOptions());
  options.wrap.modules = arguments.wrap;
  return options;
}

Json table(const EstimateArguments& arguments, const Sizes& sizes) {
  Json rows = Json::array();
  for (const auto& dtype : arguments.dtypes) {
    const auto bytes = kBytesPerElement.at(dtype);
    const auto training = training_bytes(dtype, sizes.total);
    rows.push_back(
        {{"dtype", dtype},
         {"largest_layer_bytes", static_cast<std::int64_t>(bytes * static_cast<double>(sizes.largest_layer))},
         {"total_bytes", static_cast<std::int64_t>(bytes * static_cast<double>(sizes.total))},
         {"training_with_adam_bytes", training ? Json(static_cast<std::int64_t>(*training)) : Json(nullptr)}});
  }
  return rows;
}

// Plans the units exactly as training on GPUs does. `gathered` is the peak of gathered parameters during a step, which
// depends on the units that --wrap defines.
Json ranks_table(const EstimateArguments& arguments, const Weights& weights, const ShardingOptions& options) {
  constexpr std::int64_t kAdamBytes = 8;  // two moments in float32
  const auto model = describe(weights);
  const auto sharding = with_defaults(options, /*on_device=*/true);
  Json rows = Json::array();
  for (const int ranks : arguments.ranks) {
    const auto memory = sharded::plan_memory(sharded::plan_units(model, sharding, ranks), model, sharding, kAdamBytes);
    rows.push_back({{"ranks", ranks},
                    {"parameters", memory.parameters},
                    {"gradients", memory.gradients},
                    {"optimizer", memory.optimizer},
                    {"gathered", memory.gathered}});
  }
  return rows;
}

// Source: accelerate/utils/other.py, convert_bytes.
std::string bytes_text(const Json& bytes) {
  if (bytes.is_null()) return "N/A";
  auto value = bytes.get<double>();
  for (const auto* unit : {"B", "KB", "MB", "GB", "TB"}) {
    if (value < 1024 || std::string_view(unit) == "TB") return fmt::format("{:.2f} {}", value, unit);
    value /= 1024;
  }
  return "";
}

// The tables are printed from the JSON, so that both outputs hold the same numbers.
void print(const Json& rows, const std::vector<std::pair<std::string, std::string>>& columns) {
  for (const auto& [key, title] : columns) std::cout << fmt::format("{:>24}", title);
  std::cout << '\n';
  for (const auto& row : rows) {
    for (const auto& [key, title] : columns) {
      const auto& cell = row[key];
      std::cout << fmt::format("{:>24}", cell.is_string() ? cell.get<std::string>()
                                         : key == "ranks" ? cell.dump()
                                                          : bytes_text(cell));
    }
    std::cout << '\n';
  }
}

// Sharding without a number of ranks, or the reverse, is an error: the second table needs both.
std::vector<std::string> problems_of(const EstimateArguments& arguments) {
  std::vector<std::string> problems;
  for (const auto& dtype : arguments.dtypes) {
    if (!kBytesPerElement.contains(dtype))
      problems.push_back(
          fmt::format("--dtypes: unknown dtype '{}'; expected float32, float16, bfloat16, int8 or int4", dtype));
  }
  if (arguments.ranks.empty() != arguments.sharding.empty())
    problems.emplace_back("--ranks and --sharding: only one was given; give both or none");
  if (!arguments.wrap.empty() && arguments.sharding.empty())
    problems.emplace_back("--wrap: needs --sharding; add it or leave --wrap out");
  for (const int ranks : arguments.ranks) {
    if (ranks < 1) problems.push_back(fmt::format("--ranks: expected 1 or more, got {}", ranks));
  }
  return problems;
}

int estimate(const EstimateArguments& arguments) {
  auto problems = problems_of(arguments);
  const auto sharding = arguments.sharding.empty() ? ShardingOptions() : sharding_of(arguments, problems);
  check_config(problems.empty(), "estimate-memory: {}", listed(problems, "\n"));
  const auto weights = read_weights(arguments.path);
  const auto rows = table(arguments, sizes_of(weights)), by_ranks = ranks_table(arguments, weights, sharding);
  if (arguments.json) {
    std::cout << Json{{"dtypes", rows}, {"sharded", by_ranks}}.dump() << std::endl;
    return kSuccess;
  }
  print(rows, {{"dtype", "dtype"},
               {"largest_layer_bytes", "largest layer"},
               {"total_bytes", "total size"},
               {"training_with_adam_bytes", "training with Adam"}});
  if (by_ranks.empty()) return kSuccess;
  std::cout << fmt::format("\nPer rank, {}, Adam, float32, without activations\n", arguments.sharding);
  print(by_ranks, {{"ranks", "ranks"},
                   {"parameters", "parameters"},
                   {"gradients", "gradients"},
                   {"optimizer", "optimizer"},
                   {"gathered", "gathered (peak)"}});
  return kSuccess;
}

}  // namespace

int estimate_memory_main(int argc, char** argv) {
  EstimateArguments arguments;
  CLI::App app("Estimates the memory for a model's weights and for training with Adam, per rank if it is sharded.",
               "accel estimate-memory");
  app.add_option("WEIGHTS", arguments.path, "Weights file, index file, or a folder that contains one of them")
      ->required();
  app.add_option("--dtypes", arguments.dtypes, "Dtypes to list: float32, float16, bfloat16, int8, int4")
      ->capture_default_str();
  app.add_option("--ranks", arguments.ranks, "Numbers of ranks, as in 8,16,64")->delimiter(',');
  app.add_option("--sharding", arguments.sharding, "FULL_SHARD, SHARD_GRAD_OP, zero1, zero2 or zero3");
  app.add_option("--wrap", arguments.wrap,
                 "Modules that are gathered one at a time, as regular expressions of their names: 'blocks\\.[0-9]+'")
      ->allow_extra_args(false);
  app.add_flag("--json", arguments.json, "JSON instead of tables, sizes in bytes");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return estimate(arguments);
}

}  // namespace accel::programs
