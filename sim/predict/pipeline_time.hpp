#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/pipeline/schedules/schedule_times.hpp"

/// The time of a pipeline's micro-batches, and what its ranks hold meanwhile.
///
///     const Pipeline pipeline({.schedule = "1f1b", .ranks = 4, .micro_batches = 8, .stages = stages});
///     pipeline.seconds().bubble();
///
/// Runs the schedule of reference/pipeline/schedules with the times of each stage. A schedule that has no table for
/// these sizes ("zb_h2", "dualpipe") has formulas. Thread rule: values.
namespace accel::predict {

struct PipelineInput {
  std::string schedule = "1f1b";
  int ranks = 1, micro_batches = 1;
  std::vector<pipeline::ActionCosts> stages;  ///< seconds, in the order of the model; a multiple of the ranks
  double message_seconds = 0;
  double message_visible = 1;  ///< the part of a message during which its ranks cannot compute
  bool has_table = true;       ///< false: by formula, which is faster
};

struct PipelineSeconds {
  double seconds = 0;  ///< of all micro-batches
  double work = 0;     ///< of the mean rank

  [[nodiscard]] double bubble() const { return seconds - work; }
};

class Pipeline {
 public:
  explicit Pipeline(PipelineInput input);

  [[nodiscard]] PipelineSeconds seconds() const;
  /// The rank of each stage.
  [[nodiscard]] std::vector<int> ranks_of_stages() const;
  /// The most bytes that a rank holds: its `rank_bytes`, and `stage_bytes` for each micro-batch of each stage from its
  /// forward pass on, half of them until the gradients of the input are computed, half until those of the weights are.
  [[nodiscard]] double peak_bytes(const std::vector<double>& stage_bytes, const std::vector<double>& rank_bytes) const;
  [[nodiscard]] bool has_table() const { return schedule_.has_value() || input_.ranks == 1; }
  [[nodiscard]] const PipelineInput& input() const { return input_; }

 private:
  PipelineInput input_;
  std::optional<pipeline::Schedule> schedule_;
};

/// Layers of each stage: as equal as possible, first over ranks, then over the stages of a rank. The last rank, which
/// has the head, and then the first have the fewest.
[[nodiscard]] std::vector<double> layers_of_stages(int layers, int ranks, int stages_per_rank);

}  // namespace accel::predict
