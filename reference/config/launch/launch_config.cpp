// Writing and checking launch configurations. Files are exchanged with Python's `accelerate config`, so the
// output must be what PyYAML and json.dumps write, byte for byte.
#include "reference/config/launch/launch_config.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/config/launch/python_yaml.hpp"
#include "reference/files/files.hpp"

namespace accel {
namespace {

using Tree = nlohmann::json;
namespace fs = std::filesystem;

// None is omitted, as in Python's BaseConfig.to_dict.
struct FieldWriter {
  Tree& tree;

  void operator()(const std::string& name, const ConfigSection& section) const {
    for (const auto& entry : section)
      std::visit([&](const auto& content) { tree[name][entry.first] = content; }, entry.second);
  }
  void operator()(const std::string& name, const std::variant<bool, std::string>& value) const {
    std::visit([&](const auto& content) { tree[name] = content; }, value);
  }
  template <typename T>
  void operator()(const std::string& name, const std::optional<T>& value) const {
    if (value) tree[name] = *value;
  }
  template <typename T>
  void operator()(const std::string& name, const T& value) const {
    tree[name] = value;
  }
};

Tree tree_of(const LaunchConfig& config) {
  Tree tree = Tree::object();
  for_each_field(config, FieldWriter{tree});
  return tree;
}

// Types of other hardware are read, because a file may come from another machine, but they cannot be launched.
bool is_unsupported_type(const std::string& distributed_type) {
  return distributed_type == "XLA" ||
         (distributed_type.starts_with("MULTI_") && distributed_type != "MULTI_CPU" && distributed_type != "MULTI_GPU");
}

}  // namespace

// Environment variables get this form, because Accelerate's launcher passes str(value).
std::string python_text(const ConfigValue& value) {
  struct Writer {
    std::string operator()(bool flag) const { return flag ? "True" : "False"; }
    std::string operator()(std::int64_t number) const { return fmt::format("{}", number); }
    // Python prints 1.0 for a float, while fmt prints 1.
    std::string operator()(double number) const {
      const auto text = fmt::format("{}", number);
      return text.find_first_not_of("-0123456789") == std::string::npos ? text + ".0" : text;
    }
    std::string operator()(const std::string& text) const { return text; }
    std::string operator()(const std::vector<bool>& flags) const {
      std::string text;
      for (const bool flag : flags) text += (text.empty() ? "" : ", ") + (*this)(flag);
      return "[" + text + "]";
    }
  };
  return std::visit(Writer(), value);
}

std::string launch_config_yaml(const LaunchConfig& config) { return python_yaml(tree_of(config)); }
std::string launch_config_json(const LaunchConfig& config) { return python_json(tree_of(config)); }

// Atomically: a launch that runs at the same time reads the old or the new file, never a part.
void write_launch_config(const LaunchConfig& config, const std::string& file) {
  PosixFiles files;
  if (const auto folder = fs::path(file).parent_path(); !folder.empty()) files.make_folder(folder.string());
  write_atomically(files, file, file.ends_with(".json") ? launch_config_json(config) : launch_config_yaml(config));
}

// Checked before a launch and not when a file is read: flags of the command line may still correct the values.
std::vector<std::string> problems_of(const LaunchConfig& config) {
  std::vector<std::string> problems;
  const auto check = [&](bool holds, const std::string& problem) {
    if (!holds) problems.push_back(problem);
  };
  const bool is_known = !is_unsupported_type(config.distributed_type) && !config.tpu_use_cluster;
  check(is_known, fmt::format("distributed_type: {} is unsupported, because this library runs on CPUs and NVIDIA "
                              "GPUs; expected NO, MULTI_CPU, MULTI_GPU, FSDP, DEEPSPEED or MEGATRON_LM",
                              config.distributed_type));
  const auto backend = config.fp8_config.find("fp8_backend");
  check(config.mixed_precision != "fp8" || backend == config.fp8_config.end() || backend->second == ConfigValue("AO"),
        fmt::format("fp8_backend: {} is a Python package; expected AO, the built-in implementation",
                    backend == config.fp8_config.end() ? "" : python_text(backend->second)));
  check(config.num_processes == -1 || config.num_processes >= 1,
        fmt::format("num_processes: expected 1 or more, got {}", config.num_processes));
  check(config.num_machines >= 1, fmt::format("num_machines: expected 1 or more, got {}", config.num_machines));
  check(
      config.machine_rank >= 0 && config.machine_rank < std::max(config.num_machines, 1),
      fmt::format("machine_rank: expected 0 to {}, got {}", std::max(config.num_machines, 1) - 1, config.machine_rank));
  // With several machines each of them runs its own launcher with the same file, so the launchers must be able to
  // compute the same ranks and to find machine 0 without talking to each other first.
  if (config.num_machines > 1) {
    check(config.num_processes == -1 || config.num_processes % config.num_machines == 0,
          fmt::format("num_processes: {} is not divisible by {} machines; expected the total over all machines",
                      config.num_processes, config.num_machines));
    check(config.main_process_ip.has_value(),
          "main_process_ip: missing; set it to the address of machine 0, because there are several machines");
    check(config.main_process_port.value_or(1) != 0,
          "main_process_port: 0 selects any free port, which other machines cannot know; expected 1 to 65535");
  }
  const auto port = config.main_process_port.value_or(0);
  check(port >= 0 && port <= 65535, fmt::format("main_process_port: expected 0 to 65535, got {}", port));
  return problems;
}

// Source: accelerate/commands/config/config_args.py and huggingface_hub/constants.py.
std::string config_folder() {
  const auto cache = expand_home(environment("XDG_CACHE_HOME").value_or("~/.cache"));
  return expand_home(environment("HF_HOME").value_or(cache + "/huggingface")) + "/accelerate";
}

// Source: config_args.py: YAML is preferred unless only the JSON file exists.
std::string default_config_file() {
  const auto yaml = config_folder() + "/default_config.yaml", json = config_folder() + "/default_config.json";
  return fs::exists(json) && !fs::exists(yaml) ? json : yaml;
}

}  // namespace accel
