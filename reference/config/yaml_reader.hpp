#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "reference/config/field_reader.hpp"

namespace accel {

/// Reads one mapping of a YAML file strictly: every problem is noted with file and line, and `throw_if_any` throws one
/// ConfigError with all of them.
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
  /// `path` is the mapping's place in the file, e.g. "model."; "" at the top.
  YamlReader(YAML::Node node, std::string path, YamlProblems& problems);

  /// The mapping under a key; an empty one if it is absent.
  YamlReader mapping(const std::string& key);
  /// The mappings of the list under a key; none if it is absent, or, where it is required, a problem.
  std::vector<YamlReader> mappings(const std::string& key);
  std::vector<YamlReader> required_mappings(const std::string& key);
  /// The keys that are there, for a mapping whose keys are data.
  [[nodiscard]] std::vector<std::string> keys() const;
  /// Notes that a known key has no meaning yet.
  void not_built(const std::string& key);

  /// A null is an absent key.
  [[nodiscard]] bool has(const std::string& key) const override;
  /// Whether a mapping is under a key that may hold a word too.
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
