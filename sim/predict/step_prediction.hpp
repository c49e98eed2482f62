#pragma once

#include <string>
#include <vector>

#include "sim/predict/hardware.hpp"
#include "sim/predict/memory_account.hpp"
#include "sim/predict/training_run.hpp"

/// Predicts the time of one optimizer step, and the memory of a GPU, from the sizes of a model, its layout and
/// constants of the hardware. No tensors, no ranks.
///
///     const auto hardware = default_hardware();
///     const auto prediction = predict(run, hardware);
///     prediction.step_seconds();
///
/// Equal ranks are computed once, so that the cost does not depend on their number. Thread rule: pure.
namespace accel::predict {

/// Seconds of a step; what a computation covers counts as computation.
struct Breakdown {
  double compute = 0, recompute = 0, tensor_parallel = 0, data_parallel = 0, pipeline_bubble = 0, context_parallel = 0,
         expert_parallel = 0, optimizer = 0, other = 0;

  [[nodiscard]] double sum() const {
    return compute + recompute + tensor_parallel + data_parallel + pipeline_bubble + context_parallel +
           expert_parallel + optimizer + other;
  }
};

struct Prediction {
  Breakdown breakdown;
  MemoryAccount memory;
  bool fits = false;
  std::vector<std::string> assumptions;

  [[nodiscard]] double step_seconds() const { return breakdown.sum(); }
};

/// Whether the micro-batches of a pipeline run by the table of its schedule, or their time comes from a formula, which
/// is faster and ignores how unequal stages wait for each other.
enum class Pipelines { kTable, kFormula };

/// Throws ArgumentError for a GPU that the hardware lacks.
[[nodiscard]] Prediction predict(const TrainingRun& run, const Hardware& hardware,
                                 Pipelines pipelines = Pipelines::kTable);

}  // namespace accel::predict
