#pragma once

#include <array>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "reference/config/config_value.hpp"

/// The keys of a configuration file's sections, and the environment variables that they become: one table for what
/// reads files, writes the environment and takes flags.
///
/// Thread rule: constants.
/// Source: accelerate/commands/launch.py (flags and their defaults), accelerate/utils/launch.py (variables).
namespace accel {

enum class KeyKind { kFlag, kInteger, kNumber, kNumberOrAuto, kText, kFlagOrText, kChoice, kFlags };

struct SectionKey {
  const char* name;  ///< of the key and of the flag: "fsdp_version"
  KeyKind kind = {};
  const char* variable;  ///< "FSDP_VERSION"; null: only the launcher reads it; of kFlags the first letters of three
  const char* fallback;  ///< the variable's value where the key is not given; null: it is not set
  std::initializer_list<const char*> choices = {};
  const char* help = "";  ///< "Whose names the other keys are"; none of what this library has not
};

struct SectionKeys {
  const char* name;    ///< "fsdp_config"
  const char* prefix;  ///< that a key may leave out: "fsdp_"; "" if it may not
  bool python_flags;   ///< flags in variables are "True" and "False", not "true" and "false"
  std::span<const SectionKey> keys = {};
  std::span<const std::pair<const char*, const char*>> old_names = {};  ///< of keys in older files
};

/// fp8_config, deepspeed_config, fsdp_config, parallelism_config, megatron_lm_config, mpirun_config and dynamo_config.
std::span<const SectionKeys> section_tables();
const SectionKeys& section_table(const std::string& section);

/// The key that a name in a section means, old names and those without the prefix too; null if there is none.
const SectionKey* find_key(const SectionKeys& section, const std::string& name);
std::vector<std::string> key_names(const SectionKeys& section);

/// What a key takes: "true or false".
std::string expected_of(const SectionKey& key);
bool fits(const SectionKey& key, const ConfigValue& value);

/// A value of kFlags, as a list or as the text "(true, false, false)"; nothing if it is none.
std::optional<std::array<bool, 3>> three_flags(const ConfigValue& value);

}  // namespace accel
