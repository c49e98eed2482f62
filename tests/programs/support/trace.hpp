#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <tuple>
#include <vector>

/// Compares traces of training runs field by field. A trace has one JSON object per line, in any order.
///
/// Example: `EXPECT_THAT(differences(parse_trace(a), parse_trace(b)), IsEmpty());`
namespace accel::testing {

/// The key of a line: rank, epoch, step, kind. A field that the kind lacks is -1.
using TraceKey = std::tuple<int, int, int, std::string>;
using Trace = std::map<TraceKey, nlohmann::json>;

/// Throws std::runtime_error if a line is not a JSON object, is of an unknown kind, or occurs twice.
Trace parse_trace(const std::string& text);
Trace read_trace(const std::string& file);

/// Returns one line per difference, or nothing if the traces are equal in every field. Losses are compared as
/// numbers, so two spellings of a value are equal, and NaN equals NaN.
std::vector<std::string> differences(const Trace& left, const Trace& right);

}  // namespace accel::testing
