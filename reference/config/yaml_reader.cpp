#include "reference/config/yaml_reader.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"

namespace accel {

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

bool YamlReader::convert(const std::string& key, FieldTarget target) const {
  try {
    std::visit([&]<typename T>(T* value) { *value = node_[key].as<T>(); }, target);
    return true;
  } catch (const YAML::Exception&) {
    return false;
  }
}

std::string YamlReader::given(const std::string& key) const {
  const auto node = node_[key];
  if (node.IsScalar()) return fmt::format(", got '{}'", node.Scalar());
  return node.IsMap() ? ", got a mapping" : ", got a list";
}

YamlReader YamlReader::mapping(const std::string& key) {
  know(key);
  return YamlReader(has(key) ? node_[key] : YAML::Node(YAML::NodeType::Map), path_ + key + ".", problems_);
}

std::vector<YamlReader> YamlReader::mappings(const std::string& key) {
  know(key);
  if (!has(key)) return {};
  const auto list = node_[key];
  if (!list.IsSequence()) problem(key, "expected a list of mappings");
  std::vector<YamlReader> readers;
  for (std::size_t index = 0; list.IsSequence() && index < list.size(); ++index) {
    readers.emplace_back(list[index], fmt::format("{}{}[{}].", path_, key, index), problems_);
  }
  return readers;
}

std::vector<YamlReader> YamlReader::required_mappings(const std::string& key) {
  if (!has(key)) missing(key);
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
  know(key);
  if (has(key)) problem(key, "not built yet");
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
    if (!known().contains(key)) {
      problems_.add(entry.first.Mark().line,
                    fmt::format("{}{}: unknown key; known: {}", path_, key, fmt::join(known(), ", ")));
    }
  }
}

}  // namespace accel
