#pragma once

#include <optional>
#include <string>
#include <vector>

namespace accel {

/// How a model is cut into stages, and how they compute a batch. Thread rule: values.
struct PipelineOptions {
  /// gpipe, 1f1b, interleaved_1f1b, zb_h1, interleaved_zero_bubble, zbv or dualpipe_v.
  std::string schedule = "1f1b";
  int micro_batches = 0;    ///< of a batch; default: as many as ranks
  int stages_per_rank = 0;  ///< default: that of the schedule
  /// The layers with which the second stage and the ones after it begin. Default: the largest stage has as few
  /// parameters as possible.
  std::vector<std::string> split_points = {};
  bool gather_output = false;  ///< forward returns the outputs on every rank
  /// Keep only the input of each layer, and compute it again in the backward pass, with the same random numbers.
  /// Running statistics of a layer are then updated twice, as under torch.utils.checkpoint.
  bool recompute = false;
  /// Messages to another rank that may be in flight before a send waits; unset: any number.
  std::optional<int> send_capacity = std::nullopt;
};

}  // namespace accel
