#pragma once

#include <string>

#include "sim/ranks/rehearse_ranks.hpp"

namespace accel::programs {

/// Describes how a run ended, as one JSON object: {"kind","fault","ranks","op","group","sequence","shapes","where",
/// "first_difference","waiting","text"}. The kind is "none" if all went well. The fields that describe a collective are
/// null if none was involved.
std::string diagnosis_json(const sim::SimulationReport& report);

/// Returns why the run ended, including runs whose ranks threw on their own; kind none if all went well.
Diagnosis diagnosis_of(const sim::SimulationReport& report);

}  // namespace accel::programs
