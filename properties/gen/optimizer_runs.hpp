#pragma once

#include <nlohmann/json.hpp>

/// Runs steps of one optimizer on gradients from a formula, as properties/oracle/optimizer_runs.py does in Python.
///
/// Example: `run_optimizer(Json::parse(R"({"dtype": "float64", "seed": 1, "steps": 3, "groups": [{"optimizer":
/// {"name": "adam", "lr": 0.1}, "shapes": [[3], [2, 9]]}]})"))`.
///
/// Request: `groups` (options as in experiment files), `fused` (false selects the multi-tensor forms), `late`
/// (number of a parameter that has no gradient before step 5, or null), `start` (null, or parameters and a state
/// dict after `step` steps). Answer: `parameters` and `state_dict` after `steps` steps. Thread rule: the rank's
/// thread.
namespace accel::testing {

nlohmann::json run_optimizer(const nlohmann::json& request);

/// Returns the operators that a step of the optimizer calls once all its state exists, in order, with names such as
/// "aten::_foreach_add_.List". Ignores `steps` and `start`.
nlohmann::json operators_of_step(const nlohmann::json& request);

}  // namespace accel::testing
