// Answers with the plan of a loader, as `sim-run plan` does, but on the ranks of this job. Requests for other numbers
// of ranks get null, so that one file of requests serves jobs of every size.
#include <nlohmann/json.hpp>

#include "properties/oracle/answers.hpp"
#include "sim/programs/experiments/data_plan.hpp"

namespace accel::testing {

OrderedJson plan_answer(RankContext& rank, const std::string& request) {
  if (OrderedJson::parse(request).value("ranks", 0) != rank.world_size) return nullptr;
  return programs::answer_plan_line(
      request, [&](const programs::PlanRequest& parsed) { return programs::answer_plan(rank, parsed); });
}

}  // namespace accel::testing
