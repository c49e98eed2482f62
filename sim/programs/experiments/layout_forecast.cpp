#include "sim/programs/experiments/layout_forecast.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/core/errors.hpp"
#include "sim/programs/experiments/train_experiment.hpp"
#include "sim/programs/layouts/layout_proof.hpp"

namespace accel::programs {
namespace {

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
  experiment.max_steps = kPricedUpdates * micro_batches_of(experiment.accelerator);
  experiment.eval_batch_size = num_ranks_;  // the evaluation after the steps is not predicted
  experiment.sample.reset();
  return experiment;
}

LayoutForecast LayoutForecaster::operator()(const ParallelismConfig& layout) {
  LayoutForecast forecast{.layout = layout};
  try {
    check_argument(experiment_.task == "char_gpt" || layout.cp_size * layout.sp_size == 1,
                   "cp and sp: the model computes no sequences");
    const auto experiment = shortened(layout);
    auto task = task_;
    task.train = TaskDataset(RepeatedSamples{task_.train, *experiment.max_steps * experiment.batch_size});
    task.eval = task_.eval.first(1);
    RankResult result;
    forecast.costs = rank_costs({num_ranks_, layout.tp_enabled()}, network_,
                                [&](RankContext& rank) { train_experiment(rank, experiment, task, {}, result); });
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
