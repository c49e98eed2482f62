#include "sim/programs/sim_run/proof_of_experiments.hpp"

#include <fmt/format.h>

#include <memory>

#include "sim/programs/experiments/experiment.hpp"
#include "sim/programs/layouts/layout_proof.hpp"

namespace accel::programs {

std::vector<std::string> overrides_of_proof(const std::string& file, const std::vector<std::string>& overrides,
                                            int num_ranks, std::int64_t max_steps) {
  const auto experiment = read_experiment(file, overrides, num_ranks);
  auto changed = overrides;
  // Complete accumulation windows: an optimizer step is compared, too.
  const auto window = micro_batches_of(experiment.accelerator);
  changed.push_back(fmt::format("max_steps={}", (max_steps + window - 1) / window * window));
  if (experiment.model.name == "gpt") {
    changed.emplace_back("model.dtype=float64");
    changed.emplace_back("model.dropout=0");  // ranks of a mesh would drop other elements
  }
  // The experiment's sizes are per rank.
  changed.push_back(fmt::format("batch_size={}", experiment.batch_size * num_ranks));
  changed.push_back(fmt::format("eval_batch_size={}", experiment.eval_batch_size * num_ranks));
  return changed;
}

LayoutComparer compare_with(const std::string& one) {
  const auto run = std::make_shared<const RecordedRun>(one, 1);
  return [run](const std::string& mesh, const ParallelismConfig& layout) {
    const RecordedRun other(mesh, static_cast<int>(layout.total_size()));
    return LayoutComparison{.disagreement = first_disagreement(*run, other, layout)};
  };
}

}  // namespace accel::programs
