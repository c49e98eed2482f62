#pragma once

#include <nlohmann/json.hpp>

namespace accel::testing {

/// Computes what a tokenizer makes of texts and ids. properties/oracle/tokenizer_files.py does the same in Python and
/// documents the format of requests and answers. Thread rule: a pure function.
nlohmann::json tokenizer_values(const nlohmann::json& request);

}  // namespace accel::testing
