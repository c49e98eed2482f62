#pragma once

#include <string>

#include "reference/core/value.hpp"

namespace accel::tracking {

/// A configuration as YAML 1.1: a line for each name, in alphabetical order, lists and dicts in it in braces. PyYAML's
/// and yaml-cpp's readers give the same values back: strings that look like something else are quoted. Tensors are
/// lists. Thread rule: any thread.
std::string yaml_text(const Value::Dict& values);

}  // namespace accel::tracking
