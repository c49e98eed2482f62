// Traces hold losses as hexadecimal floats, whose spelling is not unique. Everything else is compared as JSON.
#include "tests/programs/support/trace.hpp"

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <stdexcept>

namespace accel::testing {
namespace {

using Json = nlohmann::json;

// The kind follows from the fields: the format has no field for it.
std::string kind_of(const Json& line) {
  if (line.contains("parameters_sha256")) return "end";
  if (line.contains("eval_correct")) return "eval";
  if (line.contains("loss")) return "step";
  throw std::runtime_error("trace line of an unknown kind: " + line.dump());
}

std::string text_of(const TraceKey& key) {
  const auto& [rank, epoch, step, kind] = key;
  return kind + " line of rank " + std::to_string(rank) + ", epoch " + std::to_string(epoch) + ", step " +
         std::to_string(step);
}

// Losses are stored as text with all their digits; "nan" and "inf" are valid.
double loss_of(const Json& text) {
  const auto string = text.get<std::string>();
  char* end = nullptr;
  const double value = std::strtod(string.c_str(), &end);
  if (string.empty() || *end != '\0') throw std::runtime_error("'" + string + "' is not a loss");
  return value;
}

bool are_equal(const std::string& field, const Json& left, const Json& right) {
  if (field != "loss") return left == right;
  const double a = loss_of(left), b = loss_of(right);
  // Equal values with different signs of zero count as different, because their bits differ.
  return (std::isnan(a) && std::isnan(b)) || (a == b && std::signbit(a) == std::signbit(b));
}

// Adds a sentence for each field that differs or exists on one side only.
void compare_lines(const TraceKey& key, const Json& left, const Json& right, std::vector<std::string>& found) {
  for (const auto& [field, value] : left.items()) {
    if (!right.contains(field)) {
      found.push_back(text_of(key) + ": only the left has " + field);
    } else if (!are_equal(field, value, right[field])) {
      found.push_back(text_of(key) + ": " + field + " is " + value.dump() + " and " + right[field].dump());
    }
  }
  for (const auto& [field, value] : right.items()) {
    if (!left.contains(field)) found.push_back(text_of(key) + ": only the right has " + field);
  }
}

}  // namespace

Trace parse_trace(const std::string& text) {
  Trace trace;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    const auto json = Json::parse(line);
    const TraceKey key{json.at("rank").get<int>(), json.value("epoch", -1), json.value("step", -1), kind_of(json)};
    if (!trace.emplace(key, json).second) throw std::runtime_error("duplicate trace line: " + text_of(key));
  }
  return trace;
}

Trace read_trace(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) throw std::runtime_error(file + " does not exist");
  std::ostringstream text;
  text << in.rdbuf();
  return parse_trace(text.str());
}

// All differences, so that a failed test shows whether one value is wrong or everything after a step.
std::vector<std::string> differences(const Trace& left, const Trace& right) {
  std::vector<std::string> found;
  for (const auto& [key, line] : left) {
    const auto other = right.find(key);
    if (other == right.end()) {
      found.push_back(text_of(key) + ": only in the left");
    } else {
      compare_lines(key, line, other->second, found);
    }
  }
  for (const auto& [key, line] : right) {
    if (!left.contains(key)) found.push_back(text_of(key) + ": only in the right");
  }
  return found;
}

}  // namespace accel::testing
