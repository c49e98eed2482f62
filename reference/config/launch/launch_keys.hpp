#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/config/launch/launch_key.hpp"

/// The table of launch settings, one row per setting. The flags of `accel launch` and `accel config`, their help and
/// completion, the keys of the configuration file, the questions of `accel config` and the environment of ranks are
/// all derived from it.
///
/// To add a setting, write a row in launch_keys.cpp, or in launch_sections.cpp for a key of a section, and the code
/// that acts on the value. A key of a plugin names the field, which has its kind, choices and variable. A key that the
/// file holds outside of sections also needs a member of LaunchConfig.
///
/// Thread rule: constants.
/// Source: accelerate/commands/launch.py (flags and their defaults), accelerate/utils/launch.py (variables).
namespace accel {

/// Flags of `accel launch`, in the groups of its help. Boolean flags have no value there.
struct LaunchGroup {
  const char* title;
  std::span<const LaunchKey> keys;
};
std::span<const LaunchGroup> launch_groups();

/// Help texts of keys that are both in a section of the file and in a group of flags.
inline constexpr const char* kMpirunHostfileHelp = "Start the ranks with mpirun on the hosts in this file";
inline constexpr const char* kGradientAccumulationStepsHelp = "Number of micro-batches per optimizer step";

/// A section of the file: keys below a common key.
struct LaunchSection {
  const char* name;  ///< "fsdp_config"
  ConfigSection LaunchConfig::*field;
  const char* prefix;         ///< prefix that keys in the file may omit: "fsdp_"; "": none
  const char* required_flag;  ///< the flag of `accel launch` that these keys require; null: they are not flags there
  bool python_flags;          ///< flags in variables are "True" and "False", not "true" and "false"
  std::span<const LaunchKey> keys = {};
  std::span<const std::pair<const char*, const char*>> old_names = {};  ///< names of keys in older files
  const char* unused_reason = nullptr;                                  ///< why nothing reads any of the keys
};
/// Why nothing reads a key of the section; null if something does.
inline const char* unused_reason(const LaunchSection& section, const LaunchKey& key) {
  return section.unused_reason != nullptr ? section.unused_reason : key.unused_reason;
}
/// Describes the variables of unused keys that are set to something else than what happens anyway. Source of the names:
/// accelerate/utils/launch.py.
std::vector<std::string> unused_variables();
/// Returns all sections; those with flags of `accel launch` come first, in the order of its help.
std::span<const LaunchSection> launch_sections();
const LaunchSection& launch_section(const std::string& name);

/// An entry of the file: a key or a section; the other pointer is null.
struct FileEntry {
  LaunchField field;
  const LaunchKey* key;
  const LaunchSection* section;
};
/// Returns the entries by name, which is also the order of the file.
const std::map<std::string, FileEntry>& file_entries();

/// Calls `visit(name, member)` for every entry of the file. `Config`: LaunchConfig, const or not.
template <typename Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  const auto visit_member = [&](const std::string& name, auto member) {
    if constexpr (!std::is_same_v<decltype(member), std::monostate>) visit(name, config.*member);
  };
  for (const auto& [name, entry] : file_entries())
    std::visit([&, &key = name](auto member) { visit_member(key, member); }, entry.field);
}

/// Returns the key for a name in a section, which may be an old name or lack the prefix; null if there is none.
const LaunchKey* find_key(const LaunchSection& section, const std::string& name);
/// Returns the key of a flag of `accel launch`; null if there is none.
const LaunchKey* find_launch_flag(const std::string& name);
/// True if a flag of `accel launch` has no value.
bool is_switch(const LaunchKey& key);

}  // namespace accel
