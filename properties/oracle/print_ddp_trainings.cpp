// Trainings under options of DistributedDataParallel and under local SGD, for the comparison with Python:
//   sim-run --ranks N [--backend gloo] -- print-ddp-trainings REQUESTS.jsonl FOLDER
// Every rank writes FOLDER/rank<r>.jsonl: one object per request, {"steps": [[loss as hexadecimal, state], ...]}.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "properties/gen/ddp_training.hpp"
#include "properties/oracle/answer_requests.hpp"

namespace accel::testing {
namespace {

using Json = nlohmann::ordered_json;

Json trainings(RankContext& rank, const std::string& request) {
  auto steps = Json::array();
  for (const auto& step : train_ddp(rank, parse_ddp_training_request(request))) steps.push_back({fmt::format("{:a}", step.loss), step.state_sha256});
  return {{"steps", steps}};
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) { return accel::testing::answer_requests(argc, argv, accel::testing::trainings); }
