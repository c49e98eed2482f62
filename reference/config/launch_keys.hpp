#pragma once

#include <map>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "reference/config/launch_key.hpp"

/// The settings of a launch, one row each. From the rows come the flags of `accel launch` and `accel config`, their
/// help and completion, the keys of the configuration file, the questions of `accel config`, and the environment of
/// ranks.
///
/// To add a setting, write a row in launch_keys.cpp, or in launch_sections.cpp for a key of a section, and the code
/// that acts on the value. A key that the file holds outside of sections also needs a member of LaunchConfig.
///
/// Thread rule: constants.
/// Source: accelerate/commands/launch.py (flags and their defaults), accelerate/utils/launch.py (variables).
namespace accel {

/// Flags of `accel launch`, as its help groups them. Those that are true or false take no value there.
struct LaunchGroup {
  const char* title;
  std::span<const LaunchKey> keys;
};
std::span<const LaunchGroup> launch_groups();

/// Of keys that are in a section of the file and in a group of flags.
inline constexpr const char* kMpirunHostfileHelp = "Let mpirun start the ranks on the hosts of this file";
inline constexpr const char* kGradientAccumulationStepsHelp = "Micro-batches in an optimizer step";

/// Keys of the file that are under a key of their own.
struct LaunchSection {
  const char* name;  ///< "fsdp_config"
  ConfigSection LaunchConfig::*field;
  const char* prefix;       ///< that a key may leave out: "fsdp_"; "" if it may not
  const char* counts_with;  ///< the flag of `accel launch` that these keys need; null: they are no flags there
  bool python_flags;        ///< flags in variables are "True" and "False", not "true" and "false"
  std::span<const LaunchKey> keys = {};
  std::span<const std::pair<const char*, const char*>> old_names = {};  ///< of keys in older files
};
/// Those with flags of `accel launch` first, in the order of its help.
std::span<const LaunchSection> launch_sections();
const LaunchSection& launch_section(const std::string& name);

/// What the file holds under a name: a key or a section; the other is null.
struct FileEntry {
  LaunchField field;
  const LaunchKey* key;
  const LaunchSection* section;
};
/// By name, which is the order of the file.
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

/// The key that a name in a section means, old names and those without the prefix too; null if there is none.
const LaunchKey* find_key(const LaunchSection& section, const std::string& name);
/// The key of a flag, in the order of the help; null if it is no flag of `accel launch`.
const LaunchKey* find_launch_flag(const std::string& name);
/// Whether a flag of `accel launch` takes no value.
bool is_switch(const LaunchKey& key);

}  // namespace accel
