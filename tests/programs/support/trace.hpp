#pragma once

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <tuple>
#include <vector>

/// Traces of training runs (contracts: one JSON object a line, in any order), compared field by field.
///
///     EXPECT_THAT(differences(parse_trace(a), parse_trace(b)), IsEmpty());
namespace accel::testing {

/// rank, epoch, step, kind; -1 where the kind has no such field.
using TraceKey = std::tuple<int, int, int, std::string>;
using Trace = std::map<TraceKey, nlohmann::json>;

/// Throws std::runtime_error for a line that is no JSON object, is of no known kind, or comes twice.
Trace parse_trace(const std::string& text);
Trace read_trace(const std::string& file);

/// One line for each difference; empty if the traces are equal in every field. Losses are compared as numbers, so that
/// two spellings of one value are equal; nan equals nan.
std::vector<std::string> differences(const Trace& left, const Trace& right);

}  // namespace accel::testing
