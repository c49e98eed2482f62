#pragma once

#include <string>

#include "reference/diagnosis/diagnosis.hpp"

namespace accel {

/// A diagnosis as one JSON object: {"kind","fault","ranks","op","group","sequence","shapes","where","first_difference",
/// "waiting","text"}. The kind is "none" if all went well. The fields that describe a collective are null if none was
/// involved.
std::string diagnosis_json(const Diagnosis& diagnosis);

}  // namespace accel
