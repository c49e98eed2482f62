#pragma once

#include <vector>

#include "sim/programs/experiments/plan_request.hpp"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace accel::programs {

/// Registers one flag per field of the request with `app`, which stores the values in `request` when it parses. Returns
/// the flags that are required unless a file provides the values. `add_loader_options` registers only the fields that
/// describe a loader.
std::vector<const CLI::Option*> add_loader_options(CLI::App& app, PlanRequest& request);
std::vector<const CLI::Option*> add_plan_options(CLI::App& app, PlanRequest& request);

}  // namespace accel::programs
