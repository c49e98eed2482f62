// Answers with what the tensorboard tracker writes. tracking.py then reads the files with TensorBoard's own reader.
// A request is {"project", "config", "kwargs", "logging_dir", "calls": [{"step", "values", "log_kwargs"} or
// {"step", "images"}]}.
#include <map>
#include <optional>

#include "properties/gen/value_json.hpp"
#include "properties/oracle/answers.hpp"
#include "reference/tracking/trackers.hpp"

namespace accel::testing {
namespace {

std::optional<std::int64_t> step_of(const Json& call) {
  return call["step"].is_null() ? std::nullopt : std::optional(call["step"].get<std::int64_t>());
}

}  // namespace

Json tracked_run_answer(const Json& request) {
  const auto context = make_single_rank();
  const RankScope scope(*context);
  Trackers trackers(*context, {"tensorboard"}, request["logging_dir"].get<std::string>());
  const auto config = value_of(request["config"]), kwargs = value_of(request["kwargs"]);
  trackers.init_trackers(request["project"], config.as<Value::Dict>(), {{"tensorboard", kwargs}});
  for (const auto& call : request["calls"]) {
    if (call.contains("values")) {
      trackers.log(value_of(call["values"]).as<Value::Dict>(), step_of(call),
                   {{"tensorboard", value_of(call["log_kwargs"])}});
      continue;
    }
    std::map<std::string, at::Tensor> images;
    for (const auto& [name, image] : call["images"].items()) images[name] = tensor_of(image);
    trackers.log_images(images, step_of(call));
  }
  trackers.end_training();
  return Json::object();
}

}  // namespace accel::testing
