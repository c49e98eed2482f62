#include "sim/predict/memory_account.hpp"

#include <algorithm>

#include "sim/predict/stage_parameters.hpp"

namespace accel::predict {
namespace {

constexpr double kContextBytes = 2.0e9;  // CUDA context, cuBLAS workspaces and NCCL's buffers
constexpr double kFragments = 0.03;      // of everything else

// What the backward pass of one layer needs, in bytes per micro-batch, if nothing is computed again.
struct LayerActivations {
  double residual = 0;      // inputs of both norms, masks of dropout
  double norm_outputs = 0;  // inputs of the first products
  double attention = 0, scores = 0;
  double dispatched = 0;                            // copies of tokens at their experts
  double mlp = 0, experts = 0, shared_experts = 0;  // inputs and outputs of the activation

  [[nodiscard]] double inner() const { return mlp + experts + shared_experts; }
  [[nodiscard]] double sum() const { return residual + norm_outputs + attention + scores + dispatched + inner(); }
};

LayerActivations activations_of(const RunContext& context) {
  const auto& run = context.run;
  const auto& model = run.model;
  const double tokens = context.tokens(), resident = context.resident_tokens();
  const double mask = context.framework.has_dropout ? 1 : 0;
  const double operand = context.has_small_products() ? 1.2 : kBytesPerHalf;  // of a product, kept in its precision
  const double per_inner = kBytesPerHalf * (model.is_gated ? 2 : 1) + operand;
  LayerActivations layer;
  layer.residual = resident * model.hidden * (2 * kBytesPerHalf + 2 * mask);
  layer.norm_outputs = resident * model.hidden * operand * 2;
  const double width = (model.query_width() + model.key_value_width() + model.value_width()) / run.tp;
  layer.attention = tokens * width * kBytesPerHalf;
  if (model.experts > 0) {
    const double sparse = (model.layers - model.dense_layers) / static_cast<double>(model.layers);
    const double copies = tokens / run.tp * model.top_k * context.imbalance() * run.etp;
    layer.dispatched = sparse * 2 * copies * model.hidden * operand;
    layer.experts = sparse * copies * model.moe_ffn / run.etp * per_inner;
    layer.shared_experts = sparse * tokens * model.shared_ffn / run.tp * per_inner;
    layer.mlp = (1 - sparse) * tokens * model.ffn / run.tp * per_inner;
  } else {
    layer.mlp = tokens * model.ffn / run.tp * per_inner;
  }
  if (run.attention == AttentionKernel::kUnfused) {
    const double scores = run.mbs * model.heads / run.tp * run.seq * run.seq / run.cp;
    layer.scores = scores * (context.framework.has_dropout ? 5 : 2);
  }
  return layer;
}

// What single parts of a layer free by recomputation.
double freed_bytes(const RunContext& context, const LayerActivations& layer) {
  const auto& recompute = context.run.recompute;
  double freed = 0;
  if (recompute.attention) freed += layer.scores;
  if (recompute.norms) freed += layer.norm_outputs;
  double inner = 0;  // complete
  if (recompute.mlp) inner += layer.mlp;
  if (recompute.experts) inner += layer.experts, freed += layer.dispatched;
  if (recompute.shared_experts) inner += layer.shared_experts;
  freed += inner;
  // The output of the activation comes again from its inputs.
  if (recompute.activation) freed += (layer.inner() - inner) / (context.run.model.is_gated ? 3 : 2);
  // Queries, keys and values of the heads come again from the latent ones.
  if (recompute.latent_projections && context.run.model.kv_lora > 0) freed += 0.75 * layer.attention;
  return freed;
}

// Kept from the forward to the backward pass.
double kept_bytes(const RunContext& context, const LayerActivations& layer) {
  const auto& run = context.run;
  const auto& recompute = run.recompute;
  const double input = context.resident_tokens() * run.model.hidden * kBytesPerHalf;
  if (recompute.is_full()) return recompute.layers * input + (1 - recompute.layers) * layer.sum();
  if (recompute.is_by_operator()) {
    // The layer's input, the attention's output, and the products' outputs that are not computed again.
    const double output = context.tokens() * run.model.value_width() / run.tp * kBytesPerHalf;
    const double share = 1 - recompute.products;
    return input + output + 2 * share * (layer.attention - output) +
           share * (layer.inner() + layer.norm_outputs + layer.dispatched);
  }
  return std::max(layer.sum() - freed_bytes(context, layer), input);
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
  const auto groups = shard_groups(run);
  const auto held = [&](double bytes, int least_zero) {
    if (run.zero < least_zero) return bytes * stage.sum();
    return bytes * (stage.dense / groups.dense.size + stage.experts / groups.experts.size);
  };
  const bool is_half = run.has_half_precision_state;
  const double gradient =
      run.precision == Precision::kFp16 && framework.gradient_bytes > 2 ? 4 : framework.gradient_bytes;
  Storage storage{.parameters = held(is_half ? 2 : framework.parameter_bytes, 3),
                  .gradients = held(is_half ? 2 : gradient, 2),
                  .optimizer = held(is_half ? 4 : framework.master_bytes + 8, 1)};
  // Stages of a pipeline gather their parameters once, and sum their gradients once.
  if (run.zero == 3 && run.pp > 1) {
    storage.parameters += kBytesPerHalf * stage.sum();
    storage.gradients += kBytesPerHalf * stage.sum();
  }
  // Each rank holds stages of both directions.
  if (run.schedule == "dualpipe" && run.pp > 1) {
    storage.parameters *= 2;
    storage.gradients *= 2;
  }
  return storage;
}

// Of the largest layers that are complete at a time: the one in use, the one that is gathered, and a gradient.
double complete_unit_bytes(const RunContext& context, const StageParameters& stage) {
  if (context.run.zero < 3 || context.run.pp > 1) return 0;
  return (2 * kBytesPerHalf + context.framework.gradient_message_bytes) * stage.largest_unit;
}

}  // namespace

MemoryAccount memory_account(const RunContext& context, const std::vector<StageShare>& stages,
                             const Pipeline& pipeline) {
  const auto layer = activations_of(context);
  const double kept = kept_bytes(context, layer);
  const double working = context.run.recompute.is_full() ? layer.sum() : 0;
  const int ranks = pipeline.input().ranks;
  const auto rank_of = pipeline.ranks_of_stages();
  std::vector<double> stage_bytes, rank_bytes(ranks);
  std::vector<Storage> storages(ranks);
  for (std::size_t index = 0; index < stages.size(); ++index) {
    const auto& stage = stages[index];
    const int rank = rank_of[index];
    stage_bytes.push_back(stage.layers * kept);
    const auto parameters = stage_parameters(context.run, stage);
    const auto storage = storage_of(context, parameters);
    storages[rank].parameters += storage.parameters + complete_unit_bytes(context, parameters);
    storages[rank].gradients += storage.gradients;
    storages[rank].optimizer += storage.optimizer;
    if (stage.has_head) rank_bytes[rank] += head_bytes(context);
  }
  for (int rank = 0; rank < ranks; ++rank)
    rank_bytes[rank] += storages[rank].parameters + storages[rank].gradients + storages[rank].optimizer + working;
  const double most = pipeline.peak_bytes(stage_bytes, rank_bytes);
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
