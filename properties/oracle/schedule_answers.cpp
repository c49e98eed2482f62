// What learning-rate schedules do, with Python's state to resume from as "load" (or null): {"straight", "resumed"}.
#include "properties/gen/schedule_values.hpp"
#include "properties/oracle/answers.hpp"

namespace accel::testing {

Json schedule_answer(const Json& request) {
  Json answer{{"straight", schedule_values(request)}};
  if (!request["load"].is_null()) answer["resumed"] = resumed_schedule_values(request, request["load"]);
  return answer;
}

}  // namespace accel::testing
