#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "sim/programs/experiments/train_experiment.hpp"

namespace accel::programs {

/// What a run of an experiment ends with.
///
///     const auto summary = summarize(results);
///     std::cout << (is_terminal ? summary_text(summary) : summary_line(summary) + "\n");
///
/// Thread rule: values.
struct RunSummary {
  std::string experiment;                           ///< path of its file
  std::string backend;                              ///< sim, gloo or nccl
  std::string report;                               ///< path of the HTML page; "" if none was written
  std::int64_t num_ranks = 0;                       ///< of the run
  std::int64_t steps = 0;                           ///< micro-batches of each rank
  std::int64_t samples = 0;                         ///< of all ranks, padding included
  double seconds = 0;                               ///< of the slowest rank, in training loops
  double loss = 0;                                  ///< the last one of rank 0; NaN without a step
  std::int64_t eval_correct = 0, eval_samples = 0;  ///< of the last evaluation; 0 samples: there was none
  std::int64_t peak_rss_bytes = 0;                  ///< of the process, or the sum over the processes
  bool is_sharded = false;
  std::vector<std::pair<std::string, std::int64_t>> memory;  ///< see `largest_memory`
};

/// Summarizes the results of all ranks. The caller sets `experiment`, `backend`, `report` and `peak_rss_bytes`.
RunSummary summarize(const std::vector<RankResult>& results);

/// Bytes by kind of memory, measured in a step near the start: for each kind, the rank that held most.
std::vector<std::pair<std::string, std::int64_t>> largest_memory(const std::vector<RankResult>& results);

/// One JSON object without a line end, for programs. Numbers that are missing or not finite are null.
std::string summary_line(const RunSummary& summary);

/// A few lines for a person.
std::string summary_text(const RunSummary& summary);

}  // namespace accel::programs
