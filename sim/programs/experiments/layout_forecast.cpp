#include "sim/programs/experiments/layout_forecast.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/core/errors.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "sim/backend/first_rank.hpp"
#include "sim/programs/experiments/train_experiment.hpp"
#include "sim/programs/layouts/layout_proof.hpp"
#include "sim/programs/layouts/traced_step.hpp"

namespace accel::programs {
namespace {

constexpr std::int64_t kUpdates = 3;  // optimizer state exists and DDP's buckets are final after the first

// Repeats the samples of a dataset that is too short for the steps.
struct RepeatedSamples {
  TaskDataset samples;
  std::int64_t num_samples;

  [[nodiscard]] std::int64_t size() const { return num_samples; }
  [[nodiscard]] TaskDataset::Batch get_batch(std::vector<std::int64_t> indices) const {
    for (auto& index : indices) index %= samples.size();
    return samples.get_batch(indices);
  }
};

}  // namespace

std::int64_t LayoutForecast::memory_bytes() const {
  std::int64_t sum = 0;
  for (const auto& [kind, bytes] : memory) sum += bytes;
  return sum;
}

LayoutForecaster::LayoutForecaster(std::string experiment, std::vector<std::string> overrides, int num_ranks,
                                   const std::string& network)
    : file_(std::move(experiment)),
      overrides_(std::move(overrides)),
      num_ranks_(num_ranks),
      network_(sim::Network::load(network)),
      experiment_(read_experiment(file_, overrides_, num_ranks)),
      task_(load_task(experiment_)) {
  network_.set_ranks(num_ranks);
}

std::vector<std::string> LayoutForecaster::overrides_of(const ParallelismConfig& layout) const {
  auto overrides = overrides_;
  if (!experiment_.accelerator.splits()) {
    overrides.emplace_back("accelerator.split_batches=true");
    overrides.push_back(fmt::format("batch_size={}", experiment_.batch_size * num_ranks_));
    overrides.push_back(fmt::format("eval_batch_size={}", experiment_.eval_batch_size * num_ranks_));
  }
  for_each_size(layout, [&](const Field& field, int size) {
    if (size > 1) overrides.push_back(fmt::format("accelerator.parallelism_config.{}={}", field.name, size));
  });
  const bool shards = experiment_.accelerator.fsdp_plugin || experiment_.accelerator.deepspeed_plugin;
  if (layout.dp_shard_enabled() && !shards) {
    const bool has_blocks = experiment_.model.name == "gpt";
    overrides.push_back(fmt::format(
        "accelerator.fsdp_plugin={{fsdp_version: 2, state_dict_type: FULL_STATE_DICT{}}}",
        has_blocks ? ", auto_wrap_policy: TRANSFORMER_BASED_WRAP, transformer_cls_names_to_wrap: [Block]" : ""));
  }
  return overrides;
}

Experiment LayoutForecaster::shortened(const ParallelismConfig& layout) const {
  auto experiment = read_experiment(file_, overrides_of(layout), num_ranks_);
  experiment.epochs = 1;
  experiment.max_steps = kUpdates * micro_batches_of(experiment.accelerator);
  experiment.eval_batch_size = num_ranks_;  // the evaluation after the steps is not predicted
  experiment.sample.reset();
  return experiment;
}

LayoutForecast LayoutForecaster::operator()(const ParallelismConfig& layout) {
  LayoutForecast forecast{.layout = layout};
  const auto& compute = network_.compute();
  sim::FirstRankOptions options{.num_ranks = num_ranks_, .cpu_factor = compute.cpu_time_factor};
  if (compute.kind == sim::ComputeCosts::Kind::kTable) {
    options.operator_seconds = [&](std::string_view op, double flops, double bytes) {
      return compute.seconds_of(op, flops, bytes);
    };
  }
  // Where the program would only warn: FSDP trains copies of an undivided model.
  options.on_model = [&](const torch::nn::Module& model) {
    const auto cuts = parallel::parameter_cuts(model);
    const bool divides =
        std::any_of(cuts.begin(), cuts.end(), [](const auto& cut) { return cut.second.mesh_axis() == kTensorAxis; });
    check_argument(divides || !layout.tp_enabled(), "tp: the model divides no layer over these ranks");
  };
  try {
    check_argument(experiment_.task == "char_gpt" || layout.cp_size * layout.sp_size == 1,
                   "cp and sp: the model computes no sequences");
    const auto experiment = shortened(layout);
    auto task = task_;
    task.train = TaskDataset(RepeatedSamples{task_.train, *experiment.max_steps * experiment.batch_size});
    task.eval = task_.eval.first(1);
    RankResult result;
    const auto trace =
        sim::run_first_rank(options, [&](RankContext& rank) { train_experiment(rank, experiment, task, {}, result); });
    const auto step = time_of_step(trace, network_);
    forecast.step_seconds = step.seconds;
    forecast.compute_seconds = step.compute_seconds;
    for (std::size_t kind = 0; kind < sharded::kMemoryKindNames.size(); ++kind)
      forecast.memory.emplace_back(sharded::kMemoryKindNames[kind],
                                   result.memory.most(static_cast<sharded::MemoryKind>(kind)));
  } catch (const InternalError& error) {
    throw InternalError(fmt::format("{}: {}", name_of(layout), error.what()));
  } catch (const Error& error) {
    forecast.problem = error.what();
  }
  return forecast;
}

}  // namespace accel::programs
