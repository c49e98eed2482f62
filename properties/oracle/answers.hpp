#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "reference/state/rank_context.hpp"

/// Computes the answers of `oracle-answers` for the comparison with Python, one request at a time. Each function's
/// source documents its requests.
namespace accel::testing {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

// These run in one process.
Json checkpoint_file_answer(const Json& request);
Json device_map_answer(const Json& request);
Json hook_answer(const Json& request);
Json model_answer(const Json& request);
Json pipeline_answer(const Json& request);
Json schedule_answer(const Json& request);
Json tracked_run_answer(const Json& request);

// These run on every rank. A request is one line of JSON.
OrderedJson checkpoint_answer(RankContext& rank, const std::string& request);
OrderedJson context_parallel_answer(RankContext& rank, const std::string& request);
OrderedJson ddp_training_answer(RankContext& rank, const std::string& request);
OrderedJson loader_program_answer(RankContext& rank, const std::string& request);
OrderedJson mixture_answer(RankContext& rank, const std::string& request);
OrderedJson parallel_layer_answer(RankContext& rank, const std::string& request);
OrderedJson pipeline_run_answer(RankContext& rank, const std::string& request);
OrderedJson plan_answer(RankContext& rank, const std::string& request);
OrderedJson random_number_answer(RankContext& rank, const std::string& request);

}  // namespace accel::testing
