// Trainings under options of DistributedDataParallel and under local SGD, for the comparison with Python:
//   sim-run --ranks N [--backend gloo] -- print-ddp-trainings REQUESTS.jsonl FOLDER
// Every rank writes FOLDER/rank<r>.jsonl: one object per request, {"steps": [[loss as hexadecimal, state], ...]}.
#include <fmt/format.h>

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "properties/gen/ddp_training.hpp"
#include "reference/core/errors.hpp"
#include "reference/run.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::ordered_json;

void write_trainings(RankContext& rank, const std::string& requests, const std::string& folder) {
  std::ifstream in(requests);
  std::ofstream out(fmt::format("{}/rank{}.jsonl", folder, rank.rank));
  for (std::string line; std::getline(in, line);) {
    auto steps = Json::array();
    for (const auto& step : train_ddp(rank, parse_ddp_training_request(line))) steps.push_back({fmt::format("{:a}", step.loss), step.state_sha256});
    out << Json{{"steps", steps}}.dump() << std::endl;
  }
  check_state(out.good(), "{} cannot be written", folder);
  rank.world.barrier();
}

int main_of_rank(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUESTS.jsonl FOLDER" << std::endl;
    return 2;
  }
  write_trainings(current_rank(), argv[1], argv[2]);
  return 0;
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) { return accel::run(argc, argv, accel::testing::main_of_rank); }
