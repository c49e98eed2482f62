#pragma once

#include <nlohmann/json.hpp>

/// Computes what a learning-rate schedule does to its optimizer over many steps.
/// properties/oracle/schedule_values.py does the same in Python and documents the format of requests and answers.
///
/// Thread rule: pure functions.
namespace accel::testing {

/// Returns the answer to a request. The class of every error is "ArgumentError", whatever Python calls it.
nlohmann::json schedule_values(const nlohmann::json& request);

/// Like schedule_values, but in two halves: after `state_at` steps it creates optimizer and schedule again, and the
/// schedule loads `state`.
nlohmann::json resumed_schedule_values(const nlohmann::json& request, const nlohmann::json& state);

}  // namespace accel::testing
