#include "sim/predict/stage_parameters.hpp"

#include <algorithm>
#include <cmath>

namespace accel::predict {

ShardGroups shard_groups(const TrainingRun& run) {
  const double shards = run.zero > 0 && run.zero_group > 0 ? run.zero_group : run.data_ranks();
  const double expert_ranks = run.ep * run.etp;
  const auto of_experts = [&](double data_ranks) {
    return RankGroup{.stride = expert_ranks, .size = std::max(1.0, std::floor(data_ranks * run.tp / expert_ranks))};
  };
  return {.dense = {.stride = run.tp, .size = shards},
          .experts = of_experts(shards),
          .all_dense = {.stride = run.tp, .size = run.data_ranks()},
          .all_experts = of_experts(run.data_ranks()),
          .replicas = {.stride = run.tp * shards, .size = run.data_ranks() / shards}};
}

StageParameters layer_parameters(const TrainingRun& run) {
  const auto& model = run.model;
  const double attention = model.attention_parameters() / run.tp;
  StageParameters layer{.dense = attention + model.mlp_parameters(model.ffn) / run.tp};
  if (model.experts > 0) {
    const double sparse = (model.layers - model.dense_layers) / static_cast<double>(model.layers);
    const double shared = model.mlp_parameters(model.shared_ffn) / run.tp + model.hidden * model.experts;
    layer.dense = attention + (1 - sparse) * model.mlp_parameters(model.ffn) / run.tp + sparse * shared;
    layer.experts = sparse * model.experts * model.mlp_parameters(model.moe_ffn) / (run.ep * run.etp);
  }
  layer.largest_unit = layer.sum();
  return layer;
}

StageParameters stage_parameters(const TrainingRun& run, const StageShare& stage) {
  auto parameters = layer_parameters(run);
  parameters.dense *= stage.layers;
  parameters.experts *= stage.layers;
  const double vocabulary = run.model.vocab * run.model.hidden / run.tp;
  const bool shares_weight = run.model.is_tied && stage.has_embedding && stage.has_head;
  const double copies = (stage.has_embedding ? 1 : 0) + (stage.has_head && !shares_weight ? 1 : 0);
  parameters.dense += copies * vocabulary;
  if (stage.has_embedding) parameters.dense += run.model.learned_positions * run.model.hidden;
  if (copies > 0) parameters.largest_unit = std::max(parameters.largest_unit, vocabulary);
  return parameters;
}

}  // namespace accel::predict
