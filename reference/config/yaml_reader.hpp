#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "reference/config/field_reader.hpp"

namespace accel {

/// Reads a mapping of a YAML file strictly. Problems are collected with file and line, and `throw_if_any` throws one
/// ConfigError that lists the first 20 and counts the others.
///
///     YamlProblems problems("run.yaml");
///     YamlReader reader(node, "", problems);
///     auto epochs = reader.required<int>("epochs", at_least_one);
///     reader.finish_keys();
///     problems.throw_if_any();
///
/// Thread rule: a value.
class YamlProblems {
 public:
  explicit YamlProblems(std::string file) : file_(std::move(file)) {}
  /// `line` counts from 0, as yaml-cpp's marks do; negative: no line.
  void add(int line, const std::string& problem);
  [[nodiscard]] bool any() const { return !problems_.empty(); }
  void throw_if_any() const;

 private:
  std::string file_;
  std::vector<std::string> problems_;
};

class YamlReader : public FieldReader {
 public:
  /// `path` is the prefix of the mapping's keys in messages, such as "model."; "" at the top level.
  YamlReader(YAML::Node node, std::string path, YamlProblems& problems);

  /// Returns the mapping under a key; an empty one if it is absent.
  YamlReader mapping(const std::string& key);
  /// Returns the mappings of the list under a key; none if the key is absent. `required_mappings` then reports a
  /// problem.
  std::vector<YamlReader> mappings(const std::string& key);
  std::vector<YamlReader> required_mappings(const std::string& key);
  /// Returns the existing keys, for a mapping whose keys are data.
  [[nodiscard]] std::vector<std::string> keys() const;
  /// Reports a problem if a known key that is not supported yet is present.
  void reject_unsupported(const std::string& key);

  /// A null value counts as absent.
  [[nodiscard]] bool has(const std::string& key) const override;
  /// True if the value of a key is a mapping, for keys that also accept a word.
  [[nodiscard]] bool has_mapping(const std::string& key) const { return has(key) && node_[key].IsMap(); }
  void missing(const std::string& key) override;
  void problem(const std::string& key, const std::string& text) override;
  void finish_keys() override;

 protected:
  bool convert(const std::string& key, FieldTarget target) const override;
  [[nodiscard]] std::string given(const std::string& key) const override;

 private:
  YAML::Node node_;
  std::string path_;
  YamlProblems& problems_;
};

/// Returns the content of a file. Throws ConfigError, which names the file, if it cannot be read.
std::string read_text(const std::string& file);

/// Parses YAML. Throws ConfigError, which names `file`, if the text is not YAML, or has more than 16 MiB, 300,000 keys
/// and values or 32 levels of nesting, with aliases expanded: so the result may be traversed.
///
/// Thread rule: pure.
YAML::Node yaml_of(const std::string& text, const std::string& file);

/// Parses a mapping; an empty text is an empty mapping. Reports duplicate keys and keys that are not names in
/// `problems` (the parser itself keeps the first of two equal keys). Throws as
/// `yaml_of` does.
///
/// Thread rule: pure.
YAML::Node parse_yaml(const std::string& text, const std::string& file, YamlProblems& problems);

/// Parses a file. `what` names the expected content, such as "an experiment file". Also throws ConfigError if the file
/// does not exist or cannot be read.
YAML::Node load_yaml(const std::string& file, const std::string& what, YamlProblems& problems);

}  // namespace accel
