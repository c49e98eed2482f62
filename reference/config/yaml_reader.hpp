#pragma once

#include <yaml-cpp/yaml.h>

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace accel {

/// Reads one mapping of a YAML file strictly: every problem (unknown key, wrong type, impossible value, missing key) is
/// noted with file and line, and `finish` throws one ConfigError with all of them.
///
///     YamlProblems problems("run.yaml");
///     YamlReader reader(node, "", problems);
///     auto epochs = reader.required<int>("epochs", [](int n) { return n >= 1; }, "1 or more");
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

class YamlReader {
 public:
  /// `path` is the mapping's place in the file, e.g. "model."; "" at the top.
  YamlReader(YAML::Node node, std::string path, YamlProblems& problems);

  /// The value of a key, or nothing if it is absent or null. `check` may be null.
  template <typename T>
  std::optional<T> optional(const std::string& key, const std::function<bool(const T&)>& check = nullptr,
                            const std::string& expected = "");
  template <typename T>
  T required(const std::string& key, const std::function<bool(const T&)>& check = nullptr,
             const std::string& expected = "") {
    const bool present = has(key);
    auto value = optional<T>(key, check, expected);
    if (!present) missing(key);
    return value.value_or(T{});
  }
  /// The mapping under a key; an empty one if it is absent.
  YamlReader mapping(const std::string& key);
  /// The mappings of the list under a key; none if it is absent, or, where it is required, a problem.
  std::vector<YamlReader> mappings(const std::string& key);
  std::vector<YamlReader> required_mappings(const std::string& key);
  /// The keys that are there, for a mapping whose keys are data.
  [[nodiscard]] std::vector<std::string> keys() const;
  /// Notes that a known key has no meaning yet.
  void not_built(const std::string& key);

  [[nodiscard]] bool has(const std::string& key) const;
  /// Whether a mapping is under a key that may hold a word too.
  [[nodiscard]] bool has_mapping(const std::string& key) const { return has(key) && node_[key].IsMap(); }
  void missing(const std::string& key);
  void problem(const std::string& key, const std::string& text);
  /// Notes the keys that nobody asked for.
  void finish_keys();

 private:
  std::optional<YAML::Node> find(const std::string& key);

  YAML::Node node_;
  std::string path_;
  YamlProblems& problems_;
  std::set<std::string> known_;
};

}  // namespace accel
