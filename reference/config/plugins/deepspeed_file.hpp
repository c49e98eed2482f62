#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

/// A DeepSpeed configuration file (JSON), of which this library uses a part.
///
///     {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "gradient_accumulation_steps": 4}
///
/// All functions throw ConfigError, which lists all problems, if the file cannot be read, is not JSON, contains
/// duplicate keys, keys that DeepSpeed lacks, or values of a wrong type. Thread rule: pure functions, except for
/// reading the file.
namespace accel {

/// The section "optimizer" or "scheduler", which DummyOptim and DummyScheduler refer to.
struct DeepSpeedSection {
  std::string type = {};                                  ///< "AdamW", "WarmupLR"
  std::map<std::string, double> numbers = {};             ///< "lr"; a flag is 0 or 1
  std::map<std::string, std::vector<double>> lists = {};  ///< "betas"
  std::map<std::string, std::string> texts = {};          ///< "warmup_type"
  std::set<std::string> automatic = {};                   ///< parameters set to "auto", which the program provides
};

/// Returns the names of all parameters in the section.
std::set<std::string> parameters_of(const DeepSpeedSection& section);

/// Returns the value of a parameter of the section for a message, such as "'linear'" or "[0.9, 0.95]".
std::string parameter_text(const DeepSpeedSection& section, const std::string& name);

struct DeepSpeedFile {
  /// Values of keys with a meaning, such as "zero_optimization.stage": numbers, flags and "auto" as written. Null
  /// counts as absent.
  std::map<std::string, std::string> values = {};
  /// Ignored keys in the order of the file. A completely ignored section is listed by its name.
  std::vector<std::string> ignored_keys = {};
  std::optional<DeepSpeedSection> optimizer = {}, scheduler = {};
};

DeepSpeedFile read_deepspeed_file(const std::string& path);

/// Returns the ignored keys, which a run should report once.
std::vector<std::string> ignored_keys(const std::string& path);

std::optional<DeepSpeedSection> optimizer_section(const std::string& path);
/// Returns a section of type WarmupLR, WarmupDecayLR or WarmupCosineLR with only the parameters of that schedule.
std::optional<DeepSpeedSection> scheduler_section(const std::string& path);

}  // namespace accel
