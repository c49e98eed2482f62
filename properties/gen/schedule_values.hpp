#pragma once

#include <nlohmann/json.hpp>

/// What a learning-rate schedule does to its optimizer over many steps; properties/oracle/schedule_values.py is the
/// same in Python, and says what requests and answers are.
///
/// Thread rule: pure functions.
namespace accel::testing {

/// An error's class is "ArgumentError" here, whatever Python calls it.
nlohmann::json schedule_values(const nlohmann::json& request);

/// The same in two halves: after `state_at` steps, optimizer and schedule are made anew, and the schedule loads
/// `state`.
nlohmann::json resumed_schedule_values(const nlohmann::json& request, const nlohmann::json& state);

}  // namespace accel::testing
