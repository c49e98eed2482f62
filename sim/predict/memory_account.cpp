#include "sim/predict/memory_account.hpp"

#include <algorithm>

#include "sim/predict/stage_parameters.hpp"

namespace accel::predict {
namespace {

constexpr double kContextBytes = 2.0e9;  // CUDA context, cuBLAS workspaces and NCCL's buffers
constexpr double kFragments = 0.03;      // of everything else

// What the backward pass of one layer needs, in bytes per micro-batch, if nothing is computed again.
struct LayerActivations {
  double norms = 0, products = 0, activation = 0, attention = 0, scores = 0;

  [[nodiscard]] double sum() const { return norms + products + activation + attention + scores; }
};

LayerActivations activations_of(const RunContext& context) {
  const auto& run = context.run;
  const auto& model = run.model;
  const double tokens = context.tokens(), resident = context.resident_tokens();
  const double mask = context.framework.has_dropout ? 1 : 0;
  const double half = context.has_small_products() ? 1.2 : kHalf;  // operands of 8 bit products stay in 8 bits
  LayerActivations layer;
  layer.norms = resident * model.hidden * (2 * kHalf + 2 * mask);
  const double width = (model.query_width() + model.key_value_width()) / run.tp;
  layer.attention = tokens * (width * kHalf + model.value_width() / run.tp * kHalf);
  layer.products = resident * model.hidden * half * 2;  // inputs of the first products of both regions
  double inner = tokens * model.ffn / run.tp;
  if (model.experts > 0) {
    const double copies = tokens / run.tp * model.top_k * context.imbalance();
    inner = copies * model.moe_ffn + tokens * model.shared_ffn / run.tp;
    layer.products += 2 * copies * model.hidden * half;
  }
  layer.activation = inner * (kHalf * (model.is_gated ? 2 : 1) + half);
  if (run.attention == AttentionKernel::kUnfused) {
    const double scores = run.mbs * model.heads / run.tp * run.seq * run.seq / run.cp;
    layer.scores = scores * (context.framework.has_dropout ? 5 : 2);
  }
  return layer;
}

// Kept from the forward to the backward pass.
double kept_bytes(const RunContext& context, const LayerActivations& layer) {
  const auto& recompute = context.run.recompute;
  const double input = context.resident_tokens() * context.run.model.hidden * kHalf;
  if (recompute.is_full()) return recompute.layers * input + (1 - recompute.layers) * layer.sum();
  double kept = layer.sum();
  if (recompute.attention) kept -= layer.scores;
  if (recompute.elementwise) {
    // The layer's input, the attention's output, and the products' outputs that are not computed again.
    const auto& run = context.run;
    const double output = context.tokens() * run.model.value_width() / run.tp * kHalf;
    const double share = 1 - recompute.products;
    kept = input + output + 2 * share * (layer.attention - output) + share * (layer.activation + layer.products);
  } else {
    kept -= recompute.products * (layer.products + layer.activation);
    if (recompute.norms) kept -= 0.5 * layer.products;
    if (recompute.activation) kept -= layer.activation / (context.run.model.is_gated ? 3 : 2);
  }
  return std::max(kept, input);
}

// Logits in 16 and 32 bits, and their gradient.
double head_bytes(const RunContext& context) {
  return context.tokens() * context.run.model.vocab / context.run.tp * 10;
}

struct Storage {
  double parameters = 0, gradients = 0, optimizer = 0;
};

Storage storage_of(const RunContext& context, const StageParameters& stage) {
  const auto& run = context.run;
  const auto& framework = context.framework;
  const double group = run.zero_group > 0 ? run.zero_group : run.data_ranks();
  const double expert_group = std::max(1.0, group * run.tp / (run.ep * run.etp));
  const auto held = [&](double bytes, int least_zero) {
    if (run.zero < least_zero) return bytes * (stage.dense + stage.experts);
    return bytes * (stage.dense / group + stage.experts / expert_group);
  };
  Storage storage;
  const double gradient =
      run.precision == Precision::kFp16 && framework.gradient_bytes > 2 ? 4 : framework.gradient_bytes;
  storage.parameters = held(run.pure_half ? 2 : framework.parameter_bytes, 3);
  storage.gradients = held(run.pure_half ? 2 : gradient, 2);
  storage.optimizer = held(run.pure_half ? 4 : framework.master_bytes + 8, 1);
  // The largest unsharded layers at a time: the one in use, and the one that is prefetched, with gradients.
  if (run.zero == 3) storage.parameters += (2 * kHalf + framework.gradient_message_bytes) * stage.largest_unit;
  return storage;
}

}  // namespace

MemoryAccount memory_account(const RunContext& context, const std::vector<StageShare>& stages,
                             const PipelineInput& pipeline) {
  const auto layer = activations_of(context);
  const double kept = kept_bytes(context, layer);
  const double working = context.run.recompute.is_full() ? layer.sum() : 0;
  const int ranks = pipeline.ranks;
  const auto rank_of = ranks_of_stages(pipeline);
  std::vector<double> stage_bytes, rank_bytes(ranks);
  std::vector<Storage> storages(ranks);
  for (std::size_t index = 0; index < stages.size(); ++index) {
    const auto& stage = stages[index];
    const int rank = rank_of[index];
    stage_bytes.push_back(stage.layers * kept);
    const auto storage = storage_of(context, stage_parameters(context.run, stage));
    storages[rank].parameters += storage.parameters;
    storages[rank].gradients += storage.gradients;
    storages[rank].optimizer += storage.optimizer;
    if (stage.has_head) rank_bytes[rank] += head_bytes(context);
  }
  for (int rank = 0; rank < ranks; ++rank)
    rank_bytes[rank] += storages[rank].parameters + storages[rank].gradients + storages[rank].optimizer + working;
  const double most = peak_bytes(pipeline, stage_bytes, rank_bytes);
  const auto fullest = std::max_element(storages.begin(), storages.end(), [](const auto& a, const auto& b) {
    return a.parameters + a.gradients + a.optimizer < b.parameters + b.gradients + b.optimizer;
  });
  MemoryAccount account{
      .parameters = fullest->parameters, .gradients = fullest->gradients, .optimizer = fullest->optimizer};
  account.activations = std::max(0.0, most - account.parameters - account.gradients - account.optimizer);
  account.reserve = kContextBytes + kFragments * most;
  return account;
}

}  // namespace accel::predict
