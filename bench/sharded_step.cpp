// The time of a fully sharded step, and of an elastic one, relative to a DDP step, on simulated ranks. A step ends when
// its slowest rank does.
#include "bench/sharded_step.hpp"

#include <algorithm>
#include <string>
#include <vector>

#include "bench/experiment_file.hpp"
#include "sim/backend/simulate.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/experiments/train_experiment.hpp"

namespace accel::bench {
namespace {

constexpr int kRanks = 8;
const char* const kGpt =
    "task: char_gpt\noptimizer: {name: adamw, lr: 0.001}\nbatch_size: 4\nepochs: 1\nmax_steps: 8\nseed: 1\neval_limit: "
    "8\n"
    "model: {name: gpt, layers: 12, heads: 4, width: 128, block_size: 64}\n";
// One unit per block, with prefetch in both directions: the configuration in which gathers overlap with computation.
const char* const kSharded =
    "accelerator: {fsdp_plugin: {auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_cls_names_to_wrap: [Block], "
    "backward_prefetch: BACKWARD_PRE, forward_prefetch: true}}\n";

// As many logical ranks as ranks: what remains is the sum in a fixed order.
const char* const kElastic = "elastic: {logical_ranks: 8}\n";

double seconds_per_step(const std::string& text) {
  const ExperimentFile file(text);
  const auto experiment = programs::read_experiment(file.path(), {}, kRanks);
  const auto task = programs::load_task(experiment);
  std::vector<double> seconds(kRanks);
  sim::simulate({.num_ranks = kRanks}, [&](RankContext& rank) {
    programs::RankResult result;
    programs::train_experiment(rank, experiment, task, {}, result);
    seconds[rank.rank] = result.seconds / static_cast<double>(result.steps);
  });
  return *std::max_element(seconds.begin(), seconds.end());
}

}  // namespace

Rows sharded_rows() {
  return {{.name = "sharded_step/full_shard",
           .measure = [] { return seconds_per_step(std::string(kGpt) + kSharded); },
           .beside = "sharded_step/ddp"},
          {.name = "sharded_step/elastic",
           .measure = [] { return seconds_per_step(std::string(kGpt) + kElastic); },
           .beside = "sharded_step/ddp"},
          {.name = "sharded_step/ddp", .measure = [] { return seconds_per_step(kGpt); }}};
}

}  // namespace accel::bench
