// `accel to-fsdp2`: converts a configuration file on the level of its tree, so that keys that this library does not
// know survive. The file is written in Python's YAML style, since Python reads it as well.

#include <CLI/CLI.hpp>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/launch/python_yaml.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/files/files.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using Tree = nlohmann::json;

struct ToFsdp2Arguments {
  std::string config_file, output_file;
  bool overwrite = false;
};

// Source: accelerate/commands/to_fsdp2.py, ARGUMENT_KEY_MAPPING.
const std::set<std::string> kRemovedInFsdp2 = {"fsdp_backward_prefetch", "fsdp_forward_prefetch",
                                               "fsdp_sync_module_states", "fsdp_use_orig_params"};

void warn(const std::string& text) { std::cerr << "accel to-fsdp2: " << text << '\n'; }

// Converts a sharding strategy to version 2's reshard_after_forward: FULL_SHARD and HYBRID_SHARD free parameters after
// forward. Other values are kept, e.g. a boolean that was set already.
Tree reshards(const Tree& strategy) {
  if (!strategy.is_string()) return strategy;
  const auto name = strategy.get<std::string>();
  const bool is_strategy =
      std::find(kShardingStrategies.begin(), kShardingStrategies.end(), name) != kShardingStrategies.end();
  return is_strategy ? Tree(name == "FULL_SHARD" || name == "HYBRID_SHARD") : strategy;
}

// Source: accelerate/commands/to_fsdp2.py, convert_config_to_fsdp2.
Tree convert_section(const Tree& section) {
  Tree converted = Tree::object();
  for (const auto& [given, value] : section.items()) {
    const auto* known = find_key(launch_section("fsdp_config"), given);
    const auto key = known == nullptr ? given : std::string(known->name);
    if (kRemovedInFsdp2.contains(key))
      warn(fmt::format("{}: removed in version 2; left out", given));
    else if (key == "fsdp_sharding_strategy" || key == "fsdp_reshard_after_forward")
      converted["fsdp_reshard_after_forward"] = reshards(value);
    else
      converted[key] = value;
  }
  converted["fsdp_version"] = 2;
  return converted;
}

// Files without FSDP, or of version 2 already, are written unchanged with a warning, as in Accelerate.
Tree convert(Tree config) {
  const auto section = config.find("fsdp_config");
  if (section == config.end() || section->empty()) {
    warn("the file has no fsdp_config; nothing to convert");
  } else if (section->value("fsdp_version", Tree(1)) == Tree(2)) {
    warn("fsdp_version is 2 already; nothing to convert");
  } else {
    *section = convert_section(*section);
  }
  return config;
}

// Reads the tree without checking its keys: a file that this library does not fully support can be converted, too.
Tree read_tree(const std::string& file) {
  YamlProblems problems(file);
  const auto root = load_yaml(file, "a configuration file", problems);
  problems.throw_if_any();
  auto tree = python_tree(root, file.ends_with(".json"));
  check_config(tree.is_object() && !tree.empty(),
               "to-fsdp2: {}: expected a mapping of keys to values, got an empty file", file);
  const bool has_section = tree.contains("fsdp_config") && !tree["fsdp_config"].is_null();
  check_config(!has_section || tree["fsdp_config"].is_object(),
               "to-fsdp2: {}: fsdp_config: expected a mapping of keys to values", file);
  return tree;
}

int to_fsdp2(const ToFsdp2Arguments& arguments) {
  // Overwriting needs explicit consent, for the input and for an existing output alike.
  const auto output = arguments.output_file.empty() ? arguments.config_file : arguments.output_file;
  std::vector<std::string> problems;
  if (!std::filesystem::exists(arguments.config_file))
    problems.push_back(fmt::format("--config_file: {} does not exist", arguments.config_file));
  if (!arguments.overwrite && arguments.output_file.empty())
    problems.push_back(
        fmt::format("no output; pass --output_file, or --overwrite to replace {}", arguments.config_file));
  else if (!arguments.overwrite && std::filesystem::exists(output))
    problems.push_back(fmt::format("{} exists already; pass --overwrite to replace it", output));
  check_config(problems.empty(), "to-fsdp2: {}", listed(problems, "; "));
  // Written atomically: with --overwrite the input file must survive a failure.
  const auto tree = convert(read_tree(arguments.config_file));
  PosixFiles files;
  write_atomically(files, output, output.ends_with(".json") ? python_json(tree) : python_yaml(tree));
  return kSuccess;
}

}  // namespace

int to_fsdp2_main(int argc, char** argv) {
  ToFsdp2Arguments arguments;
  CLI::App app("Converts a configuration of FSDP version 1 to version 2.", "accel to-fsdp2");
  app.add_option("--config_file", arguments.config_file, "File to convert")->required();
  app.add_flag("--overwrite", arguments.overwrite, "Replace the output file if it exists");
  app.add_option("--output_file", arguments.output_file, "File to write; default with --overwrite: the converted file");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  return to_fsdp2(arguments);
}

}  // namespace accel::programs
