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

/// What one rank made of an experiment.
struct RankResult {
  std::int64_t steps = 0;    // training micro-batches, in this process
  std::int64_t samples = 0;  // of this rank, padding included
  double seconds = 0;        // in training loops, behind the steps of the warm-up
  double loss = 0;           // the last one
  std::int64_t eval_correct = 0,
               eval_samples = 0;   // classes named right, and all; of the last evaluation, over all ranks
  std::vector<std::string> trace;  // JSON lines, if asked for
  std::vector<double> losses;      // by step, if asked for
  std::string sample;              // on rank 0, of an experiment that asks for one: printable
  sharded::MemoryAccount memory;   // of a step near the start
  bool is_sharded = false;
};

struct TrainOptions {
  bool trace = false;
  bool keeps_losses = false;
  int progress_descriptor = -1;            // rank 0 draws there
  std::string project_dir;                 // checkpoints go there
  std::optional<std::int64_t> save_every;  // micro-batches
  std::string resume;                      // a checkpoint folder
  std::int64_t num_of_others = 0;          // checkpoints of the project before this number are not of this run
  std::int64_t warm_up_steps = 0;          // which a benchmark does not time
};

/// The numbers of the checkpoints in a project's folder, in order.
std::vector<std::int64_t> project_checkpoints(Files& files, const std::string& project_dir);

/// The built-in training program, on one rank of any backend. The order of its events is fixed, so that a run can be
/// compared bit by bit with the same experiment under Hugging Face Accelerate. Collective. `result` grows with each
/// step: what a run leaves that an error ends is in it.
void train_experiment(RankContext& context, const Experiment& experiment, const Task& task, const TrainOptions& options,
                      RankResult& result);

}  // namespace accel::programs
