// Runs the same experiment file here and under Accelerate. Each round measures both, one after the other, and the ratio
// is taken per round, so a slow phase of the machine affects both sides alike.
#include "bench/beside_python.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "bench/experiment_file.hpp"
#include "bench/median.hpp"
#include "bench/printed_json.hpp"
#include "reference/state/rank_context.hpp"
#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/experiments/train_experiment.hpp"

namespace accel::bench {
namespace {

using Json = nlohmann::ordered_json;

// The number of steps of each case gives runs of a few seconds on both sides, so start-up noise is small.
struct Case {
  PythonJobs jobs;
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
      {PythonJobs::kOneRank, "mlp, batch 32, one rank", 1, 1500, mlp},
      {PythonJobs::kGloo, "mlp, batch 32, 2 Gloo processes", 2, 800, mlp},
      {PythonJobs::kGloo, "mlp, batch 32, 4 Gloo processes", 4, 400, mlp},
      {PythonJobs::kLanguage, "gpt, 2 layers of 64, batch 4", 1, 200,
       gpt + "batch_size: 4\nmodel: {name: gpt, layers: 2, heads: 4, width: 64, block_size: 64}\n"},
      {PythonJobs::kLanguage, "gpt, 4 layers of 256, batch 8", 1, 15,
       gpt + "batch_size: 8\nmodel: {name: gpt, layers: 4, heads: 4, width: 256, block_size: 128}\n"},
      {PythonJobs::kLanguage, "gpt of 10.8 million parameters, batch 2", 1, 8,
       gpt + "batch_size: 2\nmodel: {name: gpt, layers: 6, heads: 6, width: 384, block_size: 256, dropout: 0.2}\n"},
      {PythonJobs::kLanguage, "gpt of 122 million parameters, batch 1", 1, 3,
       gpt + "batch_size: 1\nmodel: {name: gpt, layers: 11, heads: 15, width: 960, block_size: 128}\n"},
  };
  return all;
}

constexpr int kWarmUpSteps = 10;  // WARM_UP_STEPS of accelerate_training.py

// One rank trains in this process with one intra-op thread, like the Python side. Several ranks are processes of
// sim-run over Gloo, which warms up on its own.
double ours(const Case& job, const std::string& file) {
  if (job.ranks == 1) {
    const auto experiment =
        programs::read_experiment(file, {fmt::format("max_steps={}", kWarmUpSteps + job.steps)}, /*num_ranks=*/1);
    const auto context = make_single_rank();
    context->num_threads = 1;
    const RankScope scope(*context);
    programs::RankResult result;
    programs::train_experiment(*context, experiment, programs::load_task(experiment), {.warm_up_steps = kWarmUpSteps},
                               result);
    return job.steps / result.seconds;
  }
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  return printed_json(fmt::format("OMP_NUM_THREADS=1 {}/sim-run --quiet --backend gloo --ranks {} --max-steps {} {}",
                                  folder, job.ranks, job.steps, file))["steps_per_second"]
      .get<double>();
}

// The same file format on both sides: accelerate_training.py reads experiments like sim-run does.
double theirs(const Case& job, const std::string& file, const std::string& python) {
  return printed_json(fmt::format("{} {} {} {}", python, job.ranks, job.steps, file))["steps_per_second"].get<double>();
}

}  // namespace

Json measure_beside_python(const std::string& python, int rounds, PythonJobs jobs) {
  Json rows = Json::array();
  for (const auto& job : cases()) {
    if (job.jobs != jobs) continue;
    const ExperimentFile written(job.experiment);
    const auto& file = written.path();
    std::vector<double> our, their, ratios;
    for (int round = 0; round < rounds; ++round) {
      our.push_back(ours(job, file));
      their.push_back(theirs(job, file, python));
      ratios.push_back(our.back() / their.back());
    }
    rows.push_back({{"job", job.name},
                    {"ranks", job.ranks},
                    {"accel_steps_per_second", median(our)},
                    {"accelerate_steps_per_second", median(their)},
                    {"ratio", median(ratios)}});
  }
  return rows;
}

}  // namespace accel::bench
