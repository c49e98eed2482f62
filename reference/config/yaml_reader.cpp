#include "reference/config/yaml_reader.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

template <typename T>
constexpr const char* type_name() {
  if constexpr (std::is_same_v<T, bool>) return "true or false";
  if constexpr (std::is_same_v<T, double>) return "a number";
  if constexpr (std::is_same_v<T, std::string>) return "text";
  if constexpr (std::is_integral_v<T>) return "an integer";
  if constexpr (std::is_same_v<T, std::vector<int>>) return "a list of integers";
  return "a list of texts";
}

template <typename T>
std::optional<T> convert(const YAML::Node& node) {
  try {
    return node.as<T>();
  } catch (const YAML::Exception&) {
    return std::nullopt;
  }
}

}  // namespace

void YamlProblems::add(int line, const std::string& problem) {
  problems_.push_back(line < 0 ? fmt::format("{}: {}", file_, problem)
                               : fmt::format("{}:{}: {}", file_, line + 1, problem));
}

void YamlProblems::throw_if_any() const {
  if (any()) throw ConfigError(fmt::format("{}", fmt::join(problems_, "\n")));
}

YamlReader::YamlReader(YAML::Node node, std::string path, YamlProblems& problems)
    : node_(std::move(node)), path_(std::move(path)), problems_(problems) {
  if (node_.IsDefined() && !node_.IsNull() && !node_.IsMap()) {
    problems_.add(node_.Mark().line, fmt::format("{}: expected a mapping of keys to values",
                                                 path_.empty() ? "the file" : path_.substr(0, path_.size() - 1)));
    node_ = YAML::Node();
  }
}

bool YamlReader::has(const std::string& key) const {
  if (!node_.IsMap()) return false;
  const auto value = node_[key];
  return value.IsDefined() && !value.IsNull();
}

std::optional<YAML::Node> YamlReader::find(const std::string& key) {
  known_.insert(key);
  return has(key) ? std::optional<YAML::Node>(node_[key]) : std::nullopt;
}

template <typename T>
std::optional<T> YamlReader::optional(const std::string& key, const std::function<bool(const T&)>& check,
                                      const std::string& expected) {
  const auto node = find(key);
  if (!node) return std::nullopt;
  const auto value = convert<T>(*node);
  if (!value || (check && !check(*value))) {
    const auto given =
        node->IsScalar() ? fmt::format("'{}'", node->Scalar()) : std::string(node->IsMap() ? "a mapping" : "a list");
    problems_.add(node->Mark().line, fmt::format("{}{}: expected {}, got {}", path_, key,
                                                 expected.empty() ? type_name<T>() : expected, given));
    return std::nullopt;
  }
  return value;
}

YamlReader YamlReader::mapping(const std::string& key) {
  const auto node = find(key);
  return YamlReader(node ? *node : YAML::Node(YAML::NodeType::Map), path_ + key + ".", problems_);
}

std::vector<YamlReader> YamlReader::mappings(const std::string& key) {
  const auto node = find(key);
  if (!node) return {};
  if (!node->IsSequence()) problem(key, "expected a list of mappings");
  std::vector<YamlReader> readers;
  for (std::size_t index = 0; node->IsSequence() && index < node->size(); ++index) {
    readers.emplace_back((*node)[index], fmt::format("{}{}[{}].", path_, key, index), problems_);
  }
  return readers;
}

std::vector<YamlReader> YamlReader::required_mappings(const std::string& key) {
  if (!find(key)) missing(key);
  return mappings(key);
}

std::vector<std::string> YamlReader::keys() const {
  std::vector<std::string> keys;
  for (const auto& entry : node_) {
    if (node_.IsMap()) keys.push_back(entry.first.as<std::string>());
  }
  return keys;
}

void YamlReader::not_built(const std::string& key) {
  if (find(key)) problem(key, "not built yet");
}

void YamlReader::missing(const std::string& key) {
  problems_.add(node_.IsDefined() ? node_.Mark().line : -1, fmt::format("{}{}: missing; it is required", path_, key));
}

void YamlReader::problem(const std::string& key, const std::string& text) {
  problems_.add(has(key) ? node_[key].Mark().line : node_.Mark().line, fmt::format("{}{}: {}", path_, key, text));
}

void YamlReader::finish_keys() {
  if (!node_.IsMap()) return;
  for (const auto& entry : node_) {
    const auto key = entry.first.as<std::string>();
    if (!known_.contains(key)) {
      problems_.add(entry.first.Mark().line,
                    fmt::format("{}{}: unknown key; known: {}", path_, key, fmt::join(known_, ", ")));
    }
  }
}

template std::optional<bool> YamlReader::optional(const std::string&, const std::function<bool(const bool&)>&,
                                                  const std::string&);
template std::optional<int> YamlReader::optional(const std::string&, const std::function<bool(const int&)>&,
                                                 const std::string&);
template std::optional<std::int64_t> YamlReader::optional(const std::string&,
                                                          const std::function<bool(const std::int64_t&)>&,
                                                          const std::string&);
template std::optional<double> YamlReader::optional(const std::string&, const std::function<bool(const double&)>&,
                                                    const std::string&);
template std::optional<std::string> YamlReader::optional(const std::string&,
                                                         const std::function<bool(const std::string&)>&,
                                                         const std::string&);
template std::optional<std::vector<int>> YamlReader::optional(const std::string&,
                                                              const std::function<bool(const std::vector<int>&)>&,
                                                              const std::string&);
template std::optional<std::vector<double>> YamlReader::optional(const std::string&,
                                                                 const std::function<bool(const std::vector<double>&)>&,
                                                                 const std::string&);
template std::optional<std::vector<std::string>> YamlReader::optional(
    const std::string&, const std::function<bool(const std::vector<std::string>&)>&, const std::string&);

}  // namespace accel
