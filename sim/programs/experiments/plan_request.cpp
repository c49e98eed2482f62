// JSON requests and answers of `sim-run plan`. The oracle reads and writes the same format, so its keys are fixed.
#include "sim/programs/experiments/plan_request.hpp"

#include <nlohmann/json.hpp>

#include "reference/config/field_checks.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/engine/world.hpp"
#include "sim/programs/rehearsal/json_reader.hpp"

namespace accel::programs {

using Json = nlohmann::ordered_json;

std::vector<std::string> problems_of(const PlanRequest& request) {
  auto problems = problems_of_fields("", request);
  // The field's own rule only checks the lower limit. The upper one belongs to the simulator.
  if (request.ranks > sim::World::kMaxRanks)
    problems.push_back(fmt::format("ranks: expected at most {}, got {}", sim::World::kMaxRanks, request.ranks));
  return problems;
}

PlanRequest read_plan_request(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_object(),
               "invalid request; expected a JSON object such as {{\"length\":17,\"batch_size\":8,\"ranks\":2}}");
  PlanRequest request;
  // Types are checked while reading and values by problems_of, which flags use as well; checking twice would repeat
  // them.
  JsonReader reader(json);
  reader.read_unchecked(request);
  auto problems = reader.problems();
  for (auto& problem : problems_of(request)) problems.push_back(std::move(problem));
  check_config(problems.empty(), "{}", listed(problems, "; "));
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
