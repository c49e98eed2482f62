// What learning-rate schedules do, for the comparison with Python:
//   print-schedule-values REQUESTS.jsonl ANSWERS.jsonl
// Per request of schedule_values.py, with Python's state to resume from as "load" (or null): {"straight", "resumed"}.
#include "properties/gen/schedule_values.hpp"
#include "properties/oracle/answer_lines.hpp"

int main(int argc, char** argv) {
  return accel::testing::answer_lines(argc, argv, [](const nlohmann::json& request) {
    nlohmann::json answer{{"straight", accel::testing::schedule_values(request)}};
    if (!request["load"].is_null()) answer["resumed"] = accel::testing::resumed_schedule_values(request, request["load"]);
    return answer;
  });
}
