#pragma once

#include <vector>

#include "sim/predict/step_prediction.hpp"

/// The layouts of a described training run, ranked by predicted step time.
///
///     const auto search = search_layouts(run, hardware);      // model, system, gpus, seq and gbs of the run count
///     search.fitting.front().run.tp;
///
/// Tries tensor, context, expert and pipeline parallelism, sharding, sizes of micro-batches and recomputation. Thread
/// rule: pure.
namespace accel::predict {

struct RankedLayout {
  TrainingRun run;
  Prediction prediction;
};

struct LayoutSearch {
  std::vector<RankedLayout> fitting;  ///< fastest first
  int num_tried = 0;
  int num_refused = 0;            ///< need more memory than the GPU has
  double least_memory_bytes = 0;  ///< of all that were tried
};

[[nodiscard]] LayoutSearch search_layouts(const TrainingRun& run, const Hardware& hardware, int num_best = 10);

/// "tp 8, pp 4 x 2 chunks, dp 16, mbs 1, ZeRO 1, full recomputation"
[[nodiscard]] std::string layout_text(const TrainingRun& run);

}  // namespace accel::predict
