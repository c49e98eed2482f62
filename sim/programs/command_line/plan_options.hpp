#pragma once

#include "sim/programs/experiments/plan_request.hpp"

namespace CLI {
class App;
}

namespace accel::programs {

/// Tells `app` of the flags that describe a loader: who reads how much of what. `request` takes the values when `app`
/// parses.
void add_loader_options(CLI::App& app, PlanRequest& request);

}  // namespace accel::programs
