#include "sim/programs/experiments/plan_request.hpp"

#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "sim/engine/world.hpp"
#include "sim/programs/runtime/json_reader.hpp"

namespace accel::programs {

using Json = nlohmann::ordered_json;

std::vector<std::string> problems_of(const PlanRequest& request) {
  std::vector<std::string> problems;
  const auto at_least = [&](const char* key, std::int64_t value, std::int64_t least) {
    if (value < least) problems.push_back(fmt::format("{}: expected {} or more, got {}", key, least, value));
  };
  at_least("length", request.length, 0);
  at_least("ranks", request.ranks, 1);
  at_least("epochs", request.epochs, 0);
  at_least("skip_batches", request.skip_batches, 0);
  if (request.ranks > sim::World::kMaxRanks)
    problems.push_back(fmt::format("ranks: expected at most {}, got {}", sim::World::kMaxRanks, request.ranks));
  return problems;
}

PlanRequest read_plan_request(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_object(), "a request is a JSON object such as {{\"length\":17,\"batch_size\":8,\"ranks\":2}}");
  PlanRequest request;
  JsonReader reader(json);
  reader.read("length", request.length, JsonReader::kRequired);
  reader.read("batch_size", request.batch_size, JsonReader::kRequired);
  reader.read("ranks", request.ranks, JsonReader::kRequired);
  reader.read("iterable", request.iterable);
  reader.read("drop_last", request.drop_last);
  reader.read("shuffle", request.shuffle);
  reader.read("seed", request.seed);
  reader.read("data_seed", request.data_seed);
  reader.read("epochs", request.epochs);
  reader.read("split_batches", request.split_batches);
  reader.read("even_batches", request.even_batches);
  reader.read("dispatch_batches", request.dispatch_batches);
  reader.read("use_seedable_sampler", request.use_seedable_sampler);
  reader.read("skip_batches", request.skip_batches);
  auto problems = reader.problems();
  for (auto& problem : problems_of(request)) problems.push_back(std::move(problem));
  check_config(problems.empty(), "{}", fmt::join(problems, "; "));
  return request;
}

Json to_json(const std::vector<PlanEpoch>& epochs) {
  Json list = Json::array();
  for (const auto& epoch : epochs) {
    list.push_back(
        {{"ranks", epoch.ranks},
         {"end_of_dataloader", epoch.end_of_dataloader},
         {"gathered_for_metrics", epoch.gathered_for_metrics ? Json(*epoch.gathered_for_metrics) : Json(nullptr)},
         {"duplicated", epoch.duplicated},
         {"dropped", epoch.dropped}});
  }
  return {{"epochs", list}};
}

}  // namespace accel::programs
