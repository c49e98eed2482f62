#pragma once

#include <yaml-cpp/yaml.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

/// YAML 1.1 as PyYAML reads and writes it, where `no` is false and 1e8 is a string.
/// Thread rule: pure.
namespace accel {

/// Converts a scalar, list or mapping to the types that PyYAML's safe_load returns. `number_forms_of_json`: 1e8 is a
/// number. Integers of more than 64 bits become strings.
nlohmann::json python_tree(const YAML::Node& node, bool number_forms_of_json = false);

/// Formats a tree like safe_dump: block style, keys in alphabetical order, strings quoted if they would be read as
/// another type. Long lines are not folded.
std::string python_yaml(const nlohmann::json& tree);

/// Formats a tree like json.dumps(indent=2, sort_keys=True), with a line end.
std::string python_json(const nlohmann::json& tree);

/// Converts JSON text to YAML: characters beyond 16 bits become one escape, such as \U0001F600. Preserves lines.
std::string json_as_yaml(const std::string& text);

}  // namespace accel
