// Trainings under options of DistributedDataParallel and under local SGD: {"steps": [[loss as hexadecimal, state],
// ...]}.
#include <fmt/format.h>

#include "properties/gen/ddp_training.hpp"
#include "properties/oracle/answers.hpp"

namespace accel::testing {

OrderedJson ddp_training_answer(RankContext& rank, const std::string& request) {
  auto steps = OrderedJson::array();
  for (const auto& step : train_ddp(rank, parse_ddp_training_request(request)))
    steps.push_back({fmt::format("{:a}", step.loss), step.state_sha256});
  return {{"steps", steps}};
}

}  // namespace accel::testing
