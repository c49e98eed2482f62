// Reading of launch configurations. Source: accelerate/commands/config/config_args.py, load_config_from_file and
// BaseConfig. Python's reader drops or misreads some mistakes silently; here all of them are reported with their
// line.
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_config.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/launch/python_yaml.hpp"
#include "reference/config/nearest_name.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"

namespace accel {
namespace {

using Tree = nlohmann::json;

// Source: accelerate/utils/dataclasses.py, DistributedType. Types that cannot be launched here are rejected
// later, by problems_of, so that `accel config` can read and convert any file.
const std::vector<std::string> kAccelerateDistributedTypes = {
    "NO",         "MULTI_CPU",  "MULTI_GPU", "FSDP",      "DEEPSPEED",    "MULTI_NPU", "MULTI_MLU",
    "MULTI_SDAA", "MULTI_MUSA", "MULTI_XPU", "MULTI_HPU", "MULTI_NEURON", "XLA",       "MEGATRON_LM"};

std::vector<std::string> names_in(const LaunchSection& section) {
  std::vector<std::string> names;
  for (const auto& key : section.keys) names.emplace_back(key.name);
  return names;
}

std::string given(const YAML::Node& node) {
  return node.IsScalar() ? fmt::format("'{}'", node.Scalar()) : node.IsMap() ? "a mapping" : "a list";
}

// Converts the nodes of a file to the fields of a LaunchConfig. Flags of the command line are converted by the same
// code (see with_flags), so that both accept the same values.
class LaunchConfigReader {
 public:
  LaunchConfigReader(const YAML::Node& root, bool is_json, YamlProblems& problems)
      : root_(root), is_json_(is_json), problems_(problems) {}

  LaunchConfig read() {
    LaunchConfig config;
    assign_fields(config);
    translate_old_keys(config);
    check_known_keys();
    check_values(config);
    const auto type = root_["distributed_type"];
    if (!type.IsDefined() || type.IsNull())
      problem(root_,
              "distributed_type: missing; it is required: NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM");
    return config;
  }

  // For flags: neither old keys nor a missing distributed_type matter there.
  void overwrite(LaunchConfig& config) {
    assign_fields(config);
    check_known_keys();
    check_values(config);
  }

 private:
  void problem(const YAML::Node& node, const std::string& text) { problems_.add(node.Mark().line, text); }
  void expected(const std::string& name, const YAML::Node& node, const std::string& what) {
    problem(node, fmt::format("{}: expected {}, got {}", name, what, given(node)));
  }
  [[nodiscard]] Tree tree(const YAML::Node& node) const { return python_tree(node, is_json_); }

  // Null keeps the default, as Python's dataclass does for a missing key.
  void assign_fields(LaunchConfig& config) {
    for_each_field(config, [&](const std::string& name, auto& field) {
      known_.push_back(name);
      const auto node = root_[name];
      if (node.IsDefined() && !node.IsNull()) assign(name, node, field);
    });
  }

  // Accepts quoted flags too ("yes"), because flags of the command line arrive as strings.
  void assign(const std::string& name, const YAML::Node& node, bool& field) {
    const auto value = node.IsScalar() ? flag_of(node.Scalar()) : std::nullopt;
    if (value)
      field = *value;
    else
      expected(name, node, "true or false");
  }
  // PyYAML's integer rules come first; a quoted number is accepted too, because flags arrive as strings.
  void assign(const std::string& name, const YAML::Node& node, int& field) {
    const auto value = tree(node);
    int number = 0;
    if (value.is_number_integer() && value.get<std::int64_t>() == static_cast<int>(value.get<std::int64_t>()))
      field = value.get<int>();
    else if (node.IsScalar() && YAML::convert<int>::decode(node, number))
      field = number;
    else
      expected(name, node, "an integer");
  }
  void assign(const std::string& name, const YAML::Node& node, std::string& field) {
    if (node.IsScalar())
      field = node.Scalar();
    else
      expected(name, node, "a string");
  }
  void assign(const std::string& name, const YAML::Node& node, std::vector<std::string>& field) {
    if (!node.IsSequence()) return expected(name, node, "a list of strings");
    for (const auto& item : node) assign(name, item, field.emplace_back());
  }
  template <typename T>
  void assign(const std::string& name, const YAML::Node& node, std::optional<T>& field) {
    assign(name, node, field.emplace());
  }
  void assign(const std::string& name, const YAML::Node& node, std::variant<bool, std::string>& field) {
    if (tree(node).is_boolean())
      field = tree(node).get<bool>();
    else
      assign(name, node, field.emplace<std::string>());
  }
  // Keys of sections are stored under their full names, so that the rest of the program knows only one spelling.
  void assign(const std::string& name, const YAML::Node& node, ConfigSection& field) {
    if (!node.IsMap()) return expected(name, node, "a mapping of keys to values");
    const auto& section = launch_section(name);
    for (const auto& entry : node) {
      const auto* key = find_key(section, entry.first.Scalar());
      if (key != nullptr)
        assign_entry(name + "." + entry.first.Scalar(), *key, entry.second, field);
      else
        unknown_key(entry.first, name + ".", names_in(section));
    }
  }

  // emplace fails if the key occurred before under another spelling ("version" and "fsdp_version").
  void assign_entry(const std::string& path, const LaunchKey& key, const YAML::Node& node, ConfigSection& section) {
    if (node.IsNull()) return;
    const auto value = value_of(key, node);
    if (!value || !fits(key, *value))
      expected(path, node, expected_of(key));
    else if (!section.emplace(key.name, *value).second)
      problem(node, fmt::format("{}: duplicate key: {} is already set, maybe in another spelling; keep only one", path,
                                key.name));
  }

  // Where a string is expected, a word keeps its spelling, so that `no` stays "no" and does not become false.
  [[nodiscard]] std::optional<ConfigValue> value_of(const LaunchKey& key, const YAML::Node& node) const {
    const auto value = tree(node);
    const bool is_text = key.kind == KeyKind::kText || key.kind == KeyKind::kChoice;
    if (value.is_string() || (is_text && value.is_boolean())) return node.Scalar();
    if (value.is_boolean()) return value.get<bool>();
    if (value.is_number_integer()) return value.get<std::int64_t>();
    if (value.is_number()) return value.get<double>();
    if (!value.is_array() ||
        !std::all_of(value.begin(), value.end(), [](const Tree& item) { return item.is_boolean(); }))
      return std::nullopt;
    return value.get<std::vector<bool>>();
  }

  // Converts keys of older versions. Source: config_args.py, process_config.
  void translate_old_keys(LaunchConfig& config) {
    bool fp16 = false;
    if (const auto node = old_key("fp16")) assign("fp16", *node, fp16);
    if (fp16 && !config.mixed_precision) config.mixed_precision = "fp16";
    if (const auto node = old_key("dynamo_backend")) {
      config.dynamo_config.clear();
      if (!is_yaml_false(*node))
        assign_entry("dynamo_backend", *find_key(launch_section("dynamo_config"), "dynamo_backend"), *node,
                     config.dynamo_config);
    }
    const auto num_processes = root_["num_processes"];
    const bool is_given = num_processes.IsDefined() && !num_processes.IsNull();
    if (!is_given && is_yaml_false(root_["distributed_type"])) config.num_processes = 1;
  }
  std::optional<YAML::Node> old_key(const char* name) {
    known_.emplace_back(name);
    const auto node = root_[name];
    return node.IsDefined() && !node.IsNull() ? std::optional<YAML::Node>(node) : std::nullopt;
  }
  // PyYAML reads an unquoted NO as false, and Python's reader accepts that.
  static bool is_yaml_false(const YAML::Node& node) {
    return node.IsDefined() && node.IsScalar() && flag_of(node.Scalar()) == false;
  }

  // known_ was filled by assign_fields and old_key, so this must run after both.
  void check_known_keys() {
    for (const auto& entry : root_) {
      if (std::find(known_.begin(), known_.end(), entry.first.Scalar()) == known_.end())
        unknown_key(entry.first, "", known_);
    }
  }
  // Python's reader rejects unknown keys as well, but without a suggestion and without the line.
  void unknown_key(const YAML::Node& key, const std::string& path, const std::vector<std::string>& names) {
    const auto hint = nearest_name_hint(key.Scalar(), names);
    problem(key,
            fmt::format("{}{}: unknown key{}", path, key.Scalar(), hint.empty() ? "; correct or remove it" : hint));
  }

  // An unquoted NO, in any spelling, is false for YAML, so it is normalized before the comparison.
  void check_values(LaunchConfig& config) {
    const auto type = root_["distributed_type"];
    if (is_yaml_false(type))
      config.distributed_type = "NO";
    else if (type.IsDefined() && std::find(kAccelerateDistributedTypes.begin(), kAccelerateDistributedTypes.end(),
                                           config.distributed_type) == kAccelerateDistributedTypes.end()) {
      expected("distributed_type", type, fmt::format("one of {}", fmt::join(kAccelerateDistributedTypes, ", ")));
    }
    if (config.compute_environment != "LOCAL_MACHINE")
      expected("compute_environment", root_["compute_environment"], "LOCAL_MACHINE");
    if (config.mixed_precision) check_precision(config);
  }
  void check_precision(LaunchConfig& config) {
    const auto node = root_["mixed_precision"];
    auto& name = *config.mixed_precision;
    name = lower_case(std::move(name));
    if (node.IsDefined() && is_yaml_false(node)) name = "no";
    const bool is_known = std::find(kMixedPrecisions.begin(), kMixedPrecisions.end(), name) != kMixedPrecisions.end();
    if (!is_known) expected("mixed_precision", node, fmt::format("{}", fmt::join(kMixedPrecisions, ", ")));
  }

  const YAML::Node root_;
  bool is_json_;
  YamlProblems& problems_;
  std::vector<std::string> known_;
};

// Returns the section that contains the key of a flag; null if the key is at the top level of the file.
const LaunchSection* section_of(const std::string& flag) {
  const auto has_it = [&](const LaunchSection& section) {
    return std::any_of(section.keys.begin(), section.keys.end(),
                       [&](const LaunchKey& key) { return key.name == flag; });
  };
  const auto sections = launch_sections();
  const auto found = std::find_if(sections.begin(), sections.end(), has_it);
  return found == sections.end() ? nullptr : &*found;
}

// Converts the value of a flag to the node that a file would contain. The tag "!" marks a quoted string.
YAML::Node node_of(const LaunchKey& key, const std::string& value) {
  YAML::Node node(value);
  if (key.kind == KeyKind::kText) node.SetTag("!");
  const auto flags = key.kind == KeyKind::kFlags ? three_flags(value) : std::nullopt;
  if (flags)
    node = YAML::Node(
        std::vector<std::string>{python_text((*flags)[0]), python_text((*flags)[1]), python_text((*flags)[2])});
  return node;
}

// JSON files are read by the YAML parser, which reports lines; nlohmann::json only validates the syntax.
YAML::Node load_json(const std::string& file, YamlProblems& problems) {
  const auto text = read_text(file);
  try {
    [[maybe_unused]] const auto json = Tree::parse(text);
  } catch (const Tree::exception& error) {
    throw ConfigError(fmt::format("{}: not valid JSON: {}", file, error.what()));
  }
  return parse_yaml(json_as_yaml(text), file, problems);
}

}  // namespace

// SageMaker is checked first: its files have other keys, each of which would be reported as unknown.
LaunchConfig read_launch_config(const std::string& file) {
  YamlProblems problems(file);
  const bool is_json = file.ends_with(".json");
  const auto root = is_json ? load_json(file, problems) : load_yaml(file, "a configuration file", problems);
  if (!root.IsMap()) {
    problems.add(root.Mark().line, fmt::format("expected a mapping of keys to values, got {}",
                                               root.IsSequence() ? "a list" : "a single value"));
    problems.throw_if_any();
  }
  const auto environment = root["compute_environment"];
  check_config(!environment.IsDefined() || !environment.IsScalar() || environment.Scalar() != "AMAZON_SAGEMAKER",
               "{}: compute_environment: AMAZON_SAGEMAKER is unsupported, because it starts Python scripts in Amazon's "
               "cloud; write a file for this machine with accel config",
               file);
  auto config = LaunchConfigReader(root, is_json, problems).read();
  problems.throw_if_any();
  return config;
}

LaunchConfig with_flags(LaunchConfig config, const std::map<std::string, std::string>& flags) {
  YAML::Node root(YAML::NodeType::Map);
  for (const auto& [flag, value] : flags) {
    if (const auto* section = section_of(flag))
      root[section->name][flag] = node_of(*find_key(*section, flag), value);
    else
      root[flag] = value;
  }
  // A flag replaces the value of the file, so that value is removed first; otherwise it would count as a
  // duplicate key.
  for_each_field(config, [&](const std::string&, auto& field) {
    if constexpr (std::is_same_v<decltype(field), ConfigSection&>)
      std::erase_if(field, [&](const auto& entry) { return flags.contains(entry.first); });
  });
  YamlProblems problems("command line");
  LaunchConfigReader(root, /*is_json=*/false, problems).overwrite(config);
  problems.throw_if_any();
  return config;
}

}  // namespace accel
