// What learning-rate schedules do, for the comparison with Python:
//   print-schedule-values REQUESTS.jsonl ANSWERS.jsonl
// Per request of schedule_values.py, with Python's state to resume from as "load" (or null): {"straight", "resumed"}.
#include <fstream>
#include <iostream>

#include "properties/gen/schedule_values.hpp"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl ANSWERS.jsonl" << std::endl;
    return 2;
  }
  std::ifstream in(argv[1]);
  std::ofstream out(argv[2]);
  for (std::string line; std::getline(in, line);) {
    const auto request = nlohmann::json::parse(line);
    nlohmann::json answer{{"straight", accel::testing::schedule_values(request)}};
    if (!request["load"].is_null()) answer["resumed"] = accel::testing::resumed_schedule_values(request, request["load"]);
    out << answer.dump() << "\n";
  }
  out.close();
  return out.good() ? 0 : 1;
}
