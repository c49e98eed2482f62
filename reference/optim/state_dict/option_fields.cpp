#include "reference/optim/state_dict/option_fields.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"

namespace accel::optim {

// Which overloads exist decides which options problems_of checks: those of other types are checked where they are read.
std::string unexpected(const char* expected, double value) {
  return fmt::format("expected {}, got {}", expected, value);
}
std::string unexpected(const char* expected, const std::string& value) {
  return fmt::format("expected {}, got '{}'", expected, value);
}
std::string unexpected(const char* expected, const NumberPair& value) {
  return fmt::format("expected {}, got ({}, {})", expected, std::get<0>(value), std::get<1>(value));
}

std::string unexpected(const char* expected, const OptionalNumberPair& value) {
  const auto& [first, second] = value;
  return fmt::format("expected {}, got ({}, {})", expected, first ? fmt::format("{}", *first) : "none", second);
}

// Python raises at the first ValueError; here the user sees all of them at once.
void throw_problems(const std::string& optimizer, const std::vector<OptionProblem>& problems) {
  std::vector<std::string> texts;
  for (const auto& problem : problems) texts.push_back(fmt::format("{}: {}", problem.name, problem.text));
  check_argument(texts.empty(), "{}: {}", optimizer, fmt::join(texts, "; "));
}

}  // namespace accel::optim
