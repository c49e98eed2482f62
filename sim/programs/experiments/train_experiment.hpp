#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/sharded/memory_account.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/experiments/task.hpp"

namespace accel::programs {

/// The result of an experiment on one rank.
struct RankResult {
  std::int64_t steps = 0;    // training micro-batches, in this process
  std::int64_t samples = 0;  // on this rank, including padding
  double seconds = 0;        // in training loops, after the warm-up steps
  double loss = 0;           // of the last step
  std::int64_t eval_correct = 0,
               eval_samples = 0;   // correct predictions and all samples of the last evaluation, over all ranks
  std::vector<std::string> trace;  // JSON lines, if requested
  std::vector<double> losses;      // one per step, if requested
  std::string sample;              // printable generated text, on rank 0, if the experiment requests one
  sharded::MemoryAccount memory;   // in a step near the start
  bool is_sharded = false;
};

struct TrainOptions {
  bool trace = false;
  bool keeps_losses = false;
  int progress_descriptor = -1;               // where rank 0 draws its progress bar; negative: nowhere
  std::string project_dir;                    // folder of the checkpoints
  std::optional<std::int64_t> save_every;     // micro-batches
  std::string resume;                         // a checkpoint folder, or empty
  std::int64_t num_existing_checkpoints = 0;  // checkpoints below this number belong to earlier runs
  std::int64_t warm_up_steps = 0;             // steps that a benchmark does not time
  std::optional<int> capture_after;  // steps after which they are replayed as a CUDA graph; else they never are
};

/// Returns the numbers of the checkpoints in a project folder, in ascending order.
std::vector<std::int64_t> project_checkpoints(Files& files, const std::string& project_dir);

/// Runs the built-in training program on one rank of any backend. The order of its operations is fixed, so that a run
/// can be compared bit by bit with the same experiment under Hugging Face Accelerate. Collective. `result` is updated
/// in every step, so that it holds what was reached if an error ends the run.
void train_experiment(RankContext& context, const Experiment& experiment, const Task& task, const TrainOptions& options,
                      RankResult& result);

}  // namespace accel::programs
