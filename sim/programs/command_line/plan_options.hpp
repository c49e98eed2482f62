#pragma once

#include <vector>

#include "sim/programs/experiments/plan_request.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accel::programs {

/// Adds the flags of a request's fields to `app`; `request` takes the values when `app` parses. Returns those that are
/// required where no file gives the values. `add_loader_options`: only of the fields that describe a loader.
std::vector<const CLI::Option*> add_loader_options(CLI::App& app, PlanRequest& request);
std::vector<const CLI::Option*> add_plan_options(CLI::App& app, PlanRequest& request);

}  // namespace accel::programs
