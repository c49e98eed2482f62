#include "sim/predict/step_prediction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"
#include "sim/predict/data_parallel.hpp"

namespace accel::predict {
namespace {

// A run is said not to fit only if it exceeds the memory by more than the account's usual error.
constexpr double kMemoryTolerance = 1.03;

// Where embedding and head count as a layer each, their stages have one less.
std::vector<StageShare> stage_shares(const TrainingRun& run) {
  const int ranks = static_cast<int>(run.pp), chunks = static_cast<int>(run.vpp);
  const bool counts_ends = run.embedding_counts_as_layer && ranks > 1;
  std::vector<StageShare> shares;
  for (const double layers : layers_of_stages(run.model.layers + (counts_ends ? 2 : 0), ranks, chunks))
    shares.push_back({.layers = layers});
  if (counts_ends) {
    shares.front().layers = std::max(0.0, shares.front().layers - 1);
    shares.back().layers = std::max(0.0, shares.back().layers - 1);
  }
  shares.front().has_embedding = shares.back().has_head = true;
  return shares;
}

pipeline::ActionCosts stage_seconds(const RunContext& context, const StageShare& share, const LayerSeconds& layer) {
  pipeline::ActionCosts seconds{.forward = share.layers * layer.forward_sum()};
  double backward = share.layers * layer.backward_sum();
  double weights = 0.5 * share.layers * layer.backward.products;  // half of the products are gradients of weights
  if (share.has_embedding) {
    const auto embedding = embedding_seconds(context);
    seconds.forward += embedding.forward;
    backward += embedding.backward;
    weights += embedding.backward;
  }
  if (share.has_head) {
    const auto head = head_seconds(context);
    seconds.forward += head.forward;
    backward += head.backward;
  }
  seconds.backward_input = backward - weights;
  seconds.backward_weight = weights;
  return seconds;
}

PipelineInput pipeline_input(const RunContext& context, const std::vector<StageShare>& shares,
                             const LayerSeconds& layer) {
  const auto& run = context.run;
  PipelineInput input{.schedule = run.schedule,
                      .ranks = static_cast<int>(run.pp),
                      .micro_batches = static_cast<int>(run.micro_batches)};
  for (const auto& share : shares) input.stages.push_back(stage_seconds(context, share, layer));
  if (run.pp > 1) {
    // Tensor parallel ranks send a part each.
    const double bytes = context.tokens() * run.model.hidden * kBytesPerHalf / run.tp;
    input.message_seconds = context.collectives.message(bytes, run.tp * run.cp * run.dp);
    input.message_visible = context.framework.message_visible;
  }
  return input;
}

// Of the rank with the first stage.
RankWork work_of(const RunContext& context, const PipelineInput& pipeline, const LayerSeconds& layer) {
  const auto& run = context.run;
  RankWork work{.layers = run.model.layers / run.pp,
                .layer_forward = layer.forward_sum(),
                .layer_backward = layer.backward_sum()};
  for (std::size_t stage = 0; stage < pipeline.stages.size(); stage += pipeline.ranks) {
    work.forward += pipeline.stages[stage].forward;
    work.backward += pipeline.stages[stage].of(pipeline::ActionKind::kBackward);
  }
  return work;
}

// Parameters of the rank with the most of them.
StageParameters fullest_rank(const TrainingRun& run, const std::vector<StageShare>& shares,
                             const std::vector<int>& rank_of) {
  std::vector<StageParameters> ranks(static_cast<std::size_t>(run.pp));
  for (std::size_t stage = 0; stage < shares.size(); ++stage) {
    const auto parameters = stage_parameters(run, shares[stage]);
    ranks[rank_of[stage]].dense += parameters.dense;
    ranks[rank_of[stage]].experts += parameters.experts;
  }
  return *std::max_element(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.sum() < b.sum(); });
}

void note_assumptions(const RunContext& context, const Pipeline& pipeline, std::vector<std::string>& notes) {
  const auto& run = context.run;
  if (context.collectives.assumes_network())
    notes.push_back(fmt::format("network: {:.0f} GB/s per node, as it is not stated",
                                context.collectives.network_bytes_per_second_per_node() / 1e9));
  if (!pipeline.has_table()) notes.push_back(fmt::format("schedule {}: by formula", run.schedule));
  if (run.model.parameters) {
    const double own = run.model.total_parameters();
    if (std::abs(own / *run.model.parameters - 1) > 0.05)
      notes.push_back(
          fmt::format("parameters: the layers have {:.3g}, the description states {:.3g}", own, *run.model.parameters));
  }
  const bool lacks_fp4 = run.precision == Precision::kFp4 && context.gpu.flops_fp4 == 0;
  const bool lacks_fp8 = run.precision == Precision::kFp8 && context.gpu.flops_fp8 == 0;
  if (lacks_fp4 || lacks_fp8)
    notes.push_back(fmt::format("precision: {} computes such products in {}", context.gpu.name,
                                context.has_small_products() ? "fp8" : "bf16"));
}

}  // namespace

Prediction predict(const TrainingRun& run, const Hardware& hardware, Pipelines pipelines) {
  const auto& gpu = hardware.gpu(run.system.gpu);
  const RunContext context(run, hardware, gpu);
  const auto layer = layer_seconds(context);
  const auto shares = stage_shares(run);
  auto input = pipeline_input(context, shares, layer);
  input.has_table = pipelines == Pipelines::kTable;
  const Pipeline pipeline(std::move(input));
  const auto seconds = pipeline.seconds();
  const auto parameters = fullest_rank(run, shares, pipeline.ranks_of_stages());
  const double layers = run.micro_batches * run.model.layers / run.pp;  // of a rank in a step
  const auto communication = layer.communication();
  Prediction prediction{.assumptions = run.assumptions};
  auto& parts = prediction.breakdown;
  parts.recompute = layers * layer.recompute;
  parts.tensor_parallel = layers * communication.tensor_parallel;
  parts.context_parallel = layers * communication.context_parallel;
  parts.expert_parallel = layers * communication.expert_parallel;
  parts.compute = seconds.work - parts.recompute - layers * communication.sum();
  parts.pipeline_bubble = seconds.bubble();
  parts.data_parallel = data_parallel_seconds(context, parameters, work_of(context, pipeline.input(), layer));
  parts.optimizer = optimizer_seconds(context, parameters);
  parts.other = hardware.latencies.step;
  prediction.memory = memory_account(context, shares, pipeline);
  prediction.fits = prediction.memory.sum() <= kMemoryTolerance * gpu.memory_bytes;
  note_assumptions(context, pipeline, prediction.assumptions);
  return prediction;
}

}  // namespace accel::predict
