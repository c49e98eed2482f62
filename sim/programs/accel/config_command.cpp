// `accel config`: writes the configuration file that `accel launch` and Python's accelerate both read. Three ways lead
// to it: questions on a terminal, keys as flags for scripts, and `default` for what this machine has.

#include <torch/cuda.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <filesystem>
#include <iostream>

#include "reference/config/launch/launch_config.hpp"
#include "reference/config/launch/launch_keys.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/accel/config_questions.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

using Flags = std::map<std::string, std::string>;

constexpr const char* kFileHelp =
    "File to write; default: default_config.yaml in $HF_HOME/accelerate, else $XDG_CACHE_HOME/huggingface/accelerate, "
    "else ~/.cache/huggingface/accelerate. A name that ends in .json selects JSON";

// Source: accelerate/commands/config/default.py, write_basic_config.
// Counts GPUs through LibTorch, so that a CPU build writes a file for CPUs even on a machine with GPUs.
LaunchConfig config_of_this_machine() {
  const auto num_gpus = static_cast<int>(torch::cuda::device_count());
  LaunchConfig config;
  config.use_cpu = num_gpus == 0;
  config.num_processes = std::max(num_gpus, 1);
  config.distributed_type = num_gpus > 1 ? "MULTI_GPU" : "NO";
  return config;
}

// Derives distributed_type from the other flags. Plugins win over the device, because they choose the wrapper.
std::string type_of(const LaunchConfig& config) {
  if (!config.fsdp_config.empty()) return "FSDP";
  if (!config.deepspeed_config.empty()) return "DEEPSPEED";
  if (!config.megatron_lm_config.empty()) return "MEGATRON_LM";
  if (config.num_processes <= 1) return "NO";
  return config.use_cpu ? "MULTI_CPU" : "MULTI_GPU";
}

// Flags apply to what fits this machine, so that `--num_processes 4` alone gives a complete file.
LaunchConfig config_of_flags(const Flags& flags) {
  auto config = with_flags(config_of_this_machine(), flags);
  if (!flags.contains("distributed_type")) config.distributed_type = type_of(config);
  if (!flags.contains("use_cpu") && config.distributed_type == "MULTI_CPU") config.use_cpu = true;
  const auto problems = problems_of(config);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  return config;
}

int write_config(const LaunchConfig& config, const std::string& file) {
  write_launch_config(config, file);
  std::cout << fmt::format("accelerate configuration saved at {}\n", file);
  return kSuccess;
}

// Writes the file only after the last answer, so that an interrupted dialogue changes nothing.
int ask_and_write(const std::string& file) {
  Prompt prompt(STDIN_FILENO, std::cout);
  try {
    return write_config(ask_launch_config(prompt), file);
  } catch (const Prompt::Interrupted&) {
    std::cerr << "accel config: interrupted; no file was written\n";
    return 128 + SIGINT;
  } catch (const ConfigError& error) {
    throw ConfigError(
        fmt::format("config: {}\nNo file was written. To avoid questions, use `accel config default` or pass keys as "
                    "flags, as in `accel config --num_processes 4`",
                    error.what()));
  }
}

// Never overwrites a file, and succeeds nevertheless, as in Accelerate: scripts call it before every run.
// Source: accelerate/commands/config/default.py.
int write_default(const std::string& file, const std::string& mixed_precision) {
  if (std::filesystem::exists(file)) {
    std::cout << fmt::format(
        "Configuration already exists at {}, will not override. Run `accel config` or give another --config_file.\n",
        file);
    return kSuccess;
  }
  return write_config(with_flags(config_of_this_machine(), {{"mixed_precision", mixed_precision}}), file);
}

// Reading fills in missing keys with their defaults, so that writing adds keys that newer versions have introduced.
int update(const std::string& file) {
  write_launch_config(read_launch_config(file), file);
  std::cout << fmt::format("Successfully updated the configuration file at {}.\n", file);
  return kSuccess;
}

// Keys that this library does not use are accepted, since files for Python may need them, but hidden from the help.
void add_flag(CLI::App& app, Flags& flags, const LaunchKey& key, const LaunchSection* section) {
  if (key.kind == KeyKind::kTexts) return;
  const auto take = [&flags, name = key.name](const std::string& value) { flags[name] = value; };
  const auto group = *key.help == 0       ? ""
                     : section == nullptr ? "Keys (given as flags, no questions are asked)"
                                          : fmt::format("Keys of {}", section->name);
  auto* option = app.add_option_function<std::string>(std::string("--") + key.name, take, help_of(key))
                     ->group(group)
                     ->type_name(expected_of(key) == "an integer" ? "N" : "TEXT");
  if (key.kind == KeyKind::kFlag) option->expected(0, 1)->default_str("true")->type_name("[true|false]");
}

void add_flags(CLI::App& app, Flags& flags) {
  for (const auto& [name, entry] : file_entries()) {
    if (entry.key != nullptr) {
      add_flag(app, flags, *entry.key, nullptr);
    } else {
      for (const auto& key : entry.section->keys) add_flag(app, flags, key, entry.section);
    }
  }
}

}  // namespace

int config_main(int argc, char** argv) {
  std::string file, mixed_precision = "no";
  Flags flags;
  CLI::App app(
      "Asks how to launch programs on this machine, and writes a configuration file for accel launch and Python's "
      "accelerate.",
      "accel config");
  app.add_option("--config_file", file, kFileHelp);
  add_flags(app, flags);
  app.require_subcommand(0, 1);
  auto* by_default =
      app.add_subcommand("default", "Write a file for this machine without questions, unless the file exists");
  by_default->add_option("--config_file", file, kFileHelp);
  const auto& precision = *file_entries().at("mixed_precision").key;
  by_default->add_option("--mixed_precision", mixed_precision, precision.help)
      ->check(CLI::IsMember(std::vector<std::string>(precision.choices.begin(), precision.choices.end())))
      ->capture_default_str();
  auto* updating = app.add_subcommand("update", "Rewrite a file with all current keys, keeping its values");
  updating->add_option("--config_file", file, kFileHelp);
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  if (file.empty()) file = default_config_file();
  // Any key given as a flag replaces all questions; mixing flags and questions would make scripts hang.
  if (by_default->parsed()) return write_default(file, mixed_precision);
  if (updating->parsed()) return update(file);
  return flags.empty() ? ask_and_write(file) : write_config(config_of_flags(flags), file);
}

}  // namespace accel::programs
