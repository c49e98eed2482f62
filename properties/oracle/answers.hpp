#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "reference/state/rank_context.hpp"

/// What `oracle-answers` computes for the comparison with Python, a request at a time; see each one's source for its
/// requests.
namespace accel::testing {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// In one process.
Json checkpoint_file_answer(const Json& request);
Json device_map_answer(const Json& request);
Json schedule_answer(const Json& request);
Json tracked_run_answer(const Json& request);

// On every rank; a request is a line of JSON.
OrderedJson checkpoint_answer(RankContext& rank, const std::string& request);
OrderedJson ddp_training_answer(RankContext& rank, const std::string& request);
OrderedJson random_number_answer(RankContext& rank, const std::string& request);

}  // namespace accel::testing
