#pragma once

#include <nlohmann/json.hpp>

/// Steps of one optimizer on gradients made by a formula, as properties/oracle/optimizer_runs.py makes them in Python.
///
///     Json answer = run_optimizer(Json::parse(R"({"dtype": "float64", "seed": 1, "steps": 3, "groups": [
///         {"optimizer": {"name": "adam", "lr": 0.1}, "shapes": [[3], [2, 9]]}]})"));
///
/// Request: `groups` (options as in experiment files), `fused` (false: multi-tensor forms of all), `late` (number of a
/// parameter that has no gradient before step 5, or null), `start` (null, or parameters and a state dict after `step`
/// steps). Answer: `parameters` and `state_dict` after `steps` steps. Thread rule: the rank's thread.
namespace accel::testing {

nlohmann::json run_optimizer(const nlohmann::json& request);

/// The operators that a step of a request's optimizer calls once all state is there, in order, as
/// "aten::_foreach_add_.List"; `steps` and `start` do not count.
nlohmann::json operators_of_step(const nlohmann::json& request);

}  // namespace accel::testing
