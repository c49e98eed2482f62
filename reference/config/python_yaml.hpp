#pragma once

#include <yaml-cpp/yaml.h>

#include <nlohmann/json_fwd.hpp>
#include <string>

/// YAML as PyYAML reads and writes it: version 1.1, where `no` is false and 1e8 is a text.
/// Thread rule: pure.
namespace accel {

/// A scalar, list or mapping with the types that PyYAML's safe_load gives; `number_forms_of_json`: 1e8 is a number.
/// What is longer than 64 bits is a text.
nlohmann::json python_tree(const YAML::Node& node, bool number_forms_of_json = false);

/// As safe_dump writes it: block style, keys in alphabetical order, texts quoted where they would be read as something
/// else. A long line is not folded.
std::string python_yaml(const nlohmann::json& tree);

/// As json.dumps(indent=2, sort_keys=True) writes it, and an end of line.
std::string python_json(const nlohmann::json& tree);

/// A JSON text in which a character beyond 16 bits is one escape, \U0001F600, as YAML has it; lines stay lines.
std::string json_as_yaml(const std::string& text);

}  // namespace accel
