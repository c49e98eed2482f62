// What the tensorboard tracker writes, for the comparison with Python:
//   print-tracked-run REQUEST.json LOGGING_DIR
// A request of tracking.py: {"project", "config", "kwargs", "calls": [{"step", "values"} or {"step", "images"}]}.
#include <fstream>
#include <iostream>

#include "properties/gen/value_json.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/trackers.hpp"

namespace {

using accel::Value;

std::optional<std::int64_t> step_of(const nlohmann::json& call) {
  return call["step"].is_null() ? std::nullopt : std::optional(call["step"].get<std::int64_t>());
}

void write_run(const nlohmann::json& request, const std::string& logging_dir) {
  const auto context = accel::make_single_rank();
  const accel::RankScope scope(*context);
  accel::Trackers trackers(*context, {"tensorboard"}, logging_dir);
  const auto config = accel::testing::value_of(request["config"]), kwargs = accel::testing::value_of(request["kwargs"]);
  trackers.init_trackers(request["project"], config.as<Value::Dict>(), {{"tensorboard", kwargs}});
  for (const auto& call : request["calls"]) {
    if (call.contains("values")) {
      trackers.log(accel::testing::value_of(call["values"]).as<Value::Dict>(), step_of(call));
      continue;
    }
    std::map<std::string, at::Tensor> images;
    for (const auto& [name, image] : call["images"].items()) images[name] = accel::testing::tensor_of(image);
    trackers.log_images(images, step_of(call));
  }
  trackers.end_training();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: " << argv[0] << " REQUEST.json LOGGING_DIR" << std::endl;
    return 2;
  }
  std::ifstream in(argv[1]);
  write_run(nlohmann::json::parse(in), argv[2]);
  return 0;
}
