#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/programs/accel/launch_plan.hpp"

/// Plans of launches, made without starting anything.
namespace accel::programs::planned_launch {

using Words = std::vector<std::string>;
using Variables = std::map<std::string, std::string>;

// The machine on which a plan is made: configuration file, environment, 8 cores, no GPUs.
inline LaunchInputs surroundings(std::optional<LaunchConfig> config = std::nullopt, Variables variables = {}) {
  LaunchInputs around;
  around.config = std::move(config);
  around.variable = [variables](const std::string& name) {
    return variables.contains(name) ? std::optional(variables.at(name)) : std::nullopt;
  };
  around.num_cores = 8;
  return around;
}

inline LaunchPlan plan(Words flags, const LaunchInputs& around = surroundings()) {
  flags.emplace_back("./train");
  return plan_launch(parse_launch_flags(flags), around);
}

inline std::string problems_of_plan(const Words& flags, const LaunchInputs& around = surroundings()) {
  try {
    plan(flags, around);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

}  // namespace accel::programs::planned_launch
