// Runs the same experiment file here and under Accelerate.
#include "bench/beside_python.hpp"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <vector>

#include "bench/experiment_file.hpp"
#include "bench/printed_json.hpp"
#include "bench/timed_training.hpp"
#include "reference/state/rank_context.hpp"

namespace accel::bench {
namespace {

// The number of steps of each case gives runs of a few seconds on both sides, so start-up noise is small.
struct Case {
  std::string name;
  int ranks;
  int steps;
  std::string experiment;
};

const std::vector<Case>& cases() {
  static const std::string mlp =
      "task: fashion_mnist\nmodel: {name: mlp}\noptimizer: {name: adam, lr: 0.001}\nbatch_size: 32\nepochs: 100\nseed: "
      "1\neval_limit: 1\n";
  static const std::string gpt =
      "task: char_gpt\noptimizer: {name: adamw, lr: 0.001}\nepochs: 100\nseed: 1\neval_limit: 1\nclip_grad_norm: 1.0\n";
  static const std::vector<Case> all = {
      {"mlp/1_rank", 1, 1500, mlp},
      {"mlp/2_gloo_processes", 2, 800, mlp},
      {"mlp/4_gloo_processes", 4, 400, mlp},
      {"gpt_of_2_layers_of_64", 1, 200,
       gpt + "batch_size: 4\nmodel: {name: gpt, layers: 2, heads: 4, width: 64, block_size: 64}\n"},
      {"gpt_of_4_layers_of_256", 1, 15,
       gpt + "batch_size: 8\nmodel: {name: gpt, layers: 4, heads: 4, width: 256, block_size: 128}\n"},
      {"gpt_of_10.8_million_parameters", 1, 8,
       gpt + "batch_size: 2\nmodel: {name: gpt, layers: 6, heads: 6, width: 384, block_size: 256, dropout: 0.2}\n"},
      {"gpt_of_122_million_parameters", 1, 3,
       gpt + "batch_size: 1\nmodel: {name: gpt, layers: 11, heads: 15, width: 960, block_size: 128}\n"},
  };
  return all;
}

// Seconds per step. One rank trains in this process with one intra-op thread, like the Python side. Several ranks are
// processes of sim-run over Gloo, which warms up on its own.
double ours(const Case& job, const std::string& file) {
  if (job.ranks == 1) {
    const auto context = make_single_rank();
    context->num_threads = 1;
    const RankScope scope(*context);
    return timed_training(*context, file, job.steps).seconds / job.steps;
  }
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  return 1 /
         printed_json(fmt::format("OMP_NUM_THREADS=1 {}/sim-run --quiet --backend gloo --ranks {} --max-steps {} {}",
                                  folder, job.ranks, job.steps, file))["steps_per_second"]
             .get<double>();
}

// The same file format on both sides: accelerate_training.py reads experiments like sim-run does.
double theirs(const Case& job, const std::string& file, const std::string& python) {
  return 1 /
         printed_json(fmt::format("{} {} {} {}", python, job.ranks, job.steps, file))["steps_per_second"].get<double>();
}

}  // namespace

Rows python_rows(const std::string& python) {
  Rows rows;
  if (python.empty()) return rows;
  for (const auto& job : cases()) {
    const auto file = std::make_shared<const ExperimentFile>(job.experiment);
    const auto name = "experiment/" + job.name;
    rows.push_back({.name = name + "/accel",
                    .measure = [&job, file] { return ours(job, file->path()); },
                    .beside = name + "/accelerate"});
    rows.push_back(
        {.name = name + "/accelerate", .measure = [&job, file, python] { return theirs(job, file->path(), python); }});
  }
  return rows;
}

}  // namespace accel::bench
