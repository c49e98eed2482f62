// Answers with the effects of a learning-rate schedule: {"straight", "resumed"}. "load" is Python's state to resume
// from, or null.
#include "properties/gen/schedule_values.hpp"
#include "properties/oracle/answers.hpp"

namespace accel::testing {

Json schedule_answer(const Json& request) {
  Json answer{{"straight", schedule_values(request)}};
  if (!request["load"].is_null()) answer["resumed"] = resumed_schedule_values(request, request["load"]);
  return answer;
}

}  // namespace accel::testing
