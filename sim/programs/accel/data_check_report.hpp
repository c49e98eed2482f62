#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sim/programs/experiments/data_check.hpp"

/// What `accel data-check` prints.
namespace accel::programs {

/// A table per loader, then the findings, a line each.
std::string data_check_table(const std::vector<LoaderCheck>& checks);
nlohmann::ordered_json data_check_json(const std::vector<LoaderCheck>& checks);

}  // namespace accel::programs
