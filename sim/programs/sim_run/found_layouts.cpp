#include "sim/programs/sim_run/found_layouts.hpp"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;
using predict::LayoutSearch;
using predict::TrainingRun;

std::int64_t count(double value) { return std::llround(value); }

const char* recompute_of(const TrainingRun& layout) {
  if (layout.recompute.is_full()) return "full";
  return layout.recompute.attention ? "selective" : "none";
}

}  // namespace

std::string found_layouts_json(const TrainingRun& run, const LayoutSearch& search) {
  Json json{{"id", run.id}, {"gpus", count(run.gpus)}, {"tried", search.num_tried}, {"do_not_fit", search.num_refused}};
  json["layouts"] = Json::array();
  for (const auto& [layout, prediction] : search.fitting) {
    json["layouts"].push_back({{"dp", count(layout.dp)},
                               {"tp", count(layout.tp)},
                               {"sp", layout.sp},
                               {"cp", count(layout.cp)},
                               {"pp", count(layout.pp)},
                               {"vpp", count(layout.vpp)},
                               {"schedule", layout.schedule},
                               {"ep", count(layout.ep)},
                               {"mbs", count(layout.mbs)},
                               {"microbatches", count(layout.micro_batches)},
                               {"zero", layout.zero},
                               {"recompute", recompute_of(layout)},
                               {"step_seconds", prediction.step_seconds()},
                               {"memory_bytes", std::llround(prediction.memory.sum())}});
  }
  json["assumptions"] = run.assumptions;
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string found_layouts_text(const TrainingRun& run, const LayoutSearch& search) {
  auto text = fmt::format("{}: {} GPUs {}, {} sequences of {} tokens; {} layouts, {} do not fit\n", run.id, run.gpus,
                          run.system.gpu, run.gbs, run.seq, search.num_tried, search.num_refused);
  for (const auto& [layout, prediction] : search.fitting) {
    const double tokens = run.gbs * run.seq / prediction.step_seconds() / run.gpus;
    text += fmt::format("  {:>9.4g} s {:>8.0f} tokens/s/GPU {:>6.1f} GB   {}\n", prediction.step_seconds(), tokens,
                        prediction.memory.sum() / 1e9, layout_text(layout));
  }
  if (search.num_tried == 0)
    text += "  no layout divides the GPUs and the sequences of a step\n";
  else if (search.fitting.empty())
    text += fmt::format("  no layout fits: the least needs {:.1f} GB per GPU\n", search.least_memory_bytes / 1e9);
  for (const auto& assumption : run.assumptions) text += fmt::format("  assumed: {}\n", assumption);
  return text;
}

}  // namespace accel::programs
