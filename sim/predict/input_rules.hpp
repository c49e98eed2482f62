#pragma once

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>

/// Rules for what people write into descriptions.
namespace accel::predict {

inline bool is_positive(double value) { return value > 0 && std::isfinite(value); }
inline bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}
inline std::string lowercase(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// The text under a key, or the elements of a list joined by "+"; "" if there is neither.
inline std::string text_under(const YAML::Node& node, const std::string& key) {
  if (!node.IsMap() || !node[key]) return "";
  const auto value = node[key];
  if (value.IsScalar()) return value.Scalar();
  std::string text;
  if (value.IsSequence()) {
    for (const auto& element : value)
      if (element.IsScalar()) text += (text.empty() ? "" : "+") + element.Scalar();
  }
  return text;
}

}  // namespace accel::predict
