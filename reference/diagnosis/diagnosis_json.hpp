#pragma once

#include <string>
#include <string_view>

#include "reference/diagnosis/diagnosis.hpp"

namespace accel {

/// A diagnosis as one JSON object: {"kind","fault","ranks","op","group","sequence","shapes","where","first_difference",
/// "waiting","text"}. The kind is "none" if all went well. The fields that describe a collective are null if none was
/// involved.
std::string diagnosis_json(const Diagnosis& diagnosis);
/// The inverse, but a time-out comes back as a hang.
Diagnosis diagnosis_of_json(std::string_view json);

}  // namespace accel
