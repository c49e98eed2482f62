#include "sim/programs/layouts/rank_costs.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "reference/core/errors.hpp"
#include "reference/mesh/mesh.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "sim/backend/first_rank.hpp"
#include "sim/programs/layouts/traced_step.hpp"

namespace accel::programs {

using Json = nlohmann::ordered_json;

RankCosts rank_costs(const CostsRequest& request, sim::Network& network,
                     const std::function<void(RankContext&)>& program) {
  const auto& compute = network.compute();
  sim::FirstRankOptions options{
      .num_ranks = request.num_ranks, .cpu_factor = compute.cpu_time_factor, .max_updates = kPricedUpdates};
  if (compute.kind == sim::ComputeCosts::Kind::kTable) {
    options.operator_seconds = [&](std::string_view op, double flops, double bytes) {
      return compute.seconds_of(op, flops, bytes);
    };
  }
  bool divides = false;
  options.on_model = [&](const torch::nn::Module& model) {
    const auto cuts = parallel::parameter_cuts(model);
    divides = divides || std::any_of(cuts.begin(), cuts.end(),
                                     [](const auto& cut) { return cut.second.mesh_axis() == kTensorAxis; });
  };
  const auto trace = sim::run_first_rank(options, program);
  // Where the program would only warn: FSDP trains copies of an undivided model.
  check_argument(divides || !request.needs_divided_layers, "tp: the model divides no layer over these ranks");
  const auto num_updates = std::count_if(trace.events.begin(), trace.events.end(), [](const auto& event) {
    return event.kind == sim::TraceEvent::Kind::kUpdate;
  });
  check_argument(num_updates >= kPricedUpdates, "the program takes {} optimizer steps; expected {} or more",
                 num_updates, kPricedUpdates);
  const auto step = time_of_step(trace, network);
  return {step.seconds, step.compute_seconds, trace.peak_memory_bytes};
}

std::string to_json(const RankCosts& costs) {
  return Json{{"step_seconds", costs.step_seconds},
              {"compute_seconds", costs.compute_seconds},
              {"memory_bytes", costs.memory_bytes}}
      .dump();
}

RankCosts rank_costs_of_json(const std::string& text) {
  const auto json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  check_config(json.is_object() && json.size() == 3, "the costs of a rank: expected an object, got '{}'", text);
  return {json["step_seconds"], json["compute_seconds"], json["memory_bytes"]};
}

}  // namespace accel::programs
