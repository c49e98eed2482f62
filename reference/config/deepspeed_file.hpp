#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

/// A DeepSpeed configuration file: JSON, of which a part has a meaning here.
///
///     {"zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}, "gradient_accumulation_steps": 4}
///
/// All functions throw ConfigError with all problems of the file: it cannot be read, is not JSON, gives a key twice, or
/// holds another type than a key's. Thread rule: pure, but for the file.
namespace accel {

/// "optimizer" or "scheduler": what DummyOptim and DummyScheduler stand for.
struct DeepSpeedSection {
  std::string type = {};                                  ///< "AdamW", "WarmupLR"
  std::map<std::string, double> numbers = {};             ///< "lr"; a flag is 0 or 1
  std::map<std::string, std::vector<double>> lists = {};  ///< "betas"
  std::map<std::string, std::string> texts = {};          ///< "warmup_type"
  std::set<std::string> automatic = {};                   ///< "auto": filled by what the code gives
};

/// Names of all parameters that the section gives.
std::set<std::string> parameters_of(const DeepSpeedSection& section);

struct DeepSpeedFile {
  /// Of keys with a meaning, such as "zero_optimization.stage": numbers, flags and "auto" as they are written. Null is
  /// absent.
  std::map<std::string, std::string> values = {};
  std::vector<std::string> keys_without_meaning =
      {};  ///< in the order of the file; a section without any by its own name
  std::optional<DeepSpeedSection> optimizer = {}, scheduler = {};
};

DeepSpeedFile read_deepspeed_file(const std::string& path);

/// What a run should say once that it does not read. Batch sizes are among them unless they are "auto": loaders decide.
std::vector<std::string> keys_without_meaning(const std::string& path);

std::optional<DeepSpeedSection> optimizer_section(const std::string& path);
/// WarmupLR, WarmupDecayLR or WarmupCosineLR, with parameters of that schedule alone.
std::optional<DeepSpeedSection> scheduler_section(const std::string& path);

}  // namespace accel
