#include "reference/optim/state_dict/option_fields.hpp"

#include <fmt/ranges.h>

#include "reference/core/errors.hpp"

namespace accel::optim {

void OptionChecks::at_least_zero(const char* name, double value) {
  expect(value >= 0, name, fmt::format("expected a number of 0 or more, got {}", value));
}

void OptionChecks::betas(const NumberPair& betas) {
  const auto [beta1, beta2] = betas;
  expect(beta1 >= 0 && beta1 < 1 && beta2 >= 0 && beta2 < 1, "betas",
         fmt::format("expected two numbers in [0, 1), got ({}, {})", beta1, beta2));
}

void throw_problems(const std::string& optimizer, const std::vector<OptionProblem>& problems) {
  std::vector<std::string> texts;
  for (const auto& problem : problems) texts.push_back(fmt::format("{}: {}", problem.name, problem.text));
  check_argument(texts.empty(), "{}: {}", optimizer, fmt::join(texts, "; "));
}

}  // namespace accel::optim
