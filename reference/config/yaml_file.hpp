#pragma once

#include <yaml-cpp/yaml.h>

#include <string>

#include "reference/config/yaml_reader.hpp"

namespace accel {

/// The content of a file. Throws ConfigError that names it if it cannot be read.
std::string read_text(const std::string& file);

/// The mapping that `text` is; an empty text is an empty mapping. Keys are names, each given once: what is not is noted
/// in `problems`, where the parser would keep the first of two. Throws ConfigError with file and line if it is not
/// YAML.
///
/// Thread rule: pure.
YAML::Node parse_yaml(const std::string& text, const std::string& file, YamlProblems& problems);

/// The same of a file; `what` is what it should be, e.g. "an experiment file". Throws ConfigError too if it is no file
/// or cannot be read.
YAML::Node load_yaml(const std::string& file, const std::string& what, YamlProblems& problems);

}  // namespace accel
