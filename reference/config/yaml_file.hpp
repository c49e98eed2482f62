#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "reference/config/yaml_reader.hpp"

namespace accel {

/// The content of a file. Throws ConfigError that names it if it cannot be read.
std::string read_text(const std::string& file);

/// The mapping that `text` is; an empty text is an empty mapping. Keys are names, each given once: what is not is noted in
/// `problems`, where the parser would keep the first of two. Throws ConfigError with file and line if it is not YAML.
///
/// Thread rule: pure.
YAML::Node parse_yaml(const std::string& text, const std::string& file, YamlProblems& problems);

}  // namespace accel
