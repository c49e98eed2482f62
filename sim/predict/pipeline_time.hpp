#pragma once

#include <string>
#include <vector>

/// The time of a pipeline's micro-batches.
///
///     pipeline_time({.schedule = "1f1b", .ranks = 4, .micro_batches = 8, .stages = stages, .message_seconds = 1e-4});
///
/// Runs the schedule of reference/pipeline/schedules with the times of each stage. Thread rule: pure.
namespace accel::predict {

struct StageSeconds {
  double forward = 0;
  double backward_input = 0, backward_weight = 0;

  [[nodiscard]] double sum() const { return forward + backward_input + backward_weight; }
};

struct PipelineInput {
  std::string schedule = "1f1b";
  int ranks = 1, micro_batches = 1;
  std::vector<StageSeconds> stages;  ///< in the order of the model; a multiple of the ranks
  double message_seconds = 0;
  double message_visible = 1;  ///< the part of a message during which its ranks cannot compute
  bool has_table = true;       ///< false: by formula
};

struct PipelineSeconds {
  double seconds = 0;       ///< of all micro-batches
  double work = 0;          ///< of the mean rank
  bool is_formula = false;  ///< the schedule does not exist for these sizes: its bubble comes from a formula

  [[nodiscard]] double bubble() const { return seconds - work; }
};

[[nodiscard]] PipelineSeconds pipeline_time(const PipelineInput& input);

/// The rank of each stage.
[[nodiscard]] std::vector<int> ranks_of_stages(const PipelineInput& input);

/// The most bytes that a rank holds: its `rank_bytes`, and `stage_bytes` for each micro-batch of each stage between its
/// forward and backward pass.
[[nodiscard]] double peak_bytes(const PipelineInput& input, const std::vector<double>& stage_bytes,
                                const std::vector<double>& rank_bytes);

}  // namespace accel::predict
