#pragma once

#include <string>

#include "sim/backend/simulate.hpp"

namespace accel::programs {

/// What a run ended in, as one JSON object: {"kind","fault","ranks","op","group","sequence","shapes","where",
/// "first_difference","waiting","text"}; kind "none" if all went well. Where there is no collective, its fields are
/// null.
std::string diagnosis_json(const sim::SimulationReport& report);

/// Why it ended, also of a run whose ranks threw by themselves; kind none if all went well.
sim::Diagnosis diagnosis_of(const sim::SimulationReport& report);

}  // namespace accel::programs
