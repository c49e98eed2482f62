// The C++ side of pipelines.py.
#include "properties/oracle/answers.hpp"
#include "reference/pipeline/schedules/schedule.hpp"

namespace accel::testing {
namespace {

Json cells_of_ranks(const pipeline::Schedule& schedule) {
  Json rows = Json::array();
  for (const auto& actions : schedule.actions) rows.push_back(cells_of(actions));
  return rows;
}

}  // namespace

Json pipeline_answer(const Json& request) {
  const auto schedule = pipeline::make_schedule(
      request.at("schedule").get<std::string>(),
      {.stages = request.at("stages"), .ranks = request.at("ranks"), .micro_batches = request.at("micro_batches")});
  return {{"computations", cells_of_ranks(schedule)}, {"messages", cells_of_ranks(with_messages(schedule))}};
}

}  // namespace accel::testing
