#include "sim/predict/data_parallel.hpp"

#include <algorithm>

namespace accel::predict {
namespace {

// Of Adam in mixed precision: reads the gradient, both moments and the weight in float32, writes the last three and the
// weight in 16 bits.
constexpr double kAdamBytes = 30;
constexpr double kNormBytes = 8;  // of a gradient: its norm, and its scaling

double gradient_message_bytes(const RunContext& context) {
  if (context.run.has_half_precision_state || (context.run.precision == Precision::kFp16 && context.run.zero < 3))
    return kBytesPerHalf;
  return context.framework.gradient_message_bytes;
}

// What remains visible of a communication beside a computation.
double visible(double communication, double computation, double least_share, double cover) {
  return std::max(least_share * communication, communication - cover * computation);
}

// Replicas keep all parameters: gradients are summed after the last micro-batch. With a sharded optimizer each rank
// receives its part, and the updated parameters are gathered.
double of_replicas(const RunContext& context, const StageParameters& parameters, const RankWork& work) {
  const auto& run = context.run;
  const auto& framework = context.framework;
  const auto& times = context.collectives;
  const auto groups = shard_groups(run);
  const double bytes = gradient_message_bytes(context);
  const bool is_complete = run.zero == 0 || groups.replicas.size > 1;  // each rank needs the sum of all its gradients
  const auto sum = [&](double parameters_of, const RankGroup& group) {
    return is_complete ? times.all_reduce(bytes * parameters_of, group) : times.gather(bytes * parameters_of, group);
  };
  const double gradients = sum(parameters.dense, groups.all_dense) + sum(parameters.experts, groups.all_experts);
  double gathered = 0;
  if (run.zero > 0) {
    gathered = times.gather(kBytesPerHalf * parameters.dense, groups.dense) +
               times.gather(kBytesPerHalf * parameters.experts, groups.experts);
  }
  double least = framework.gradient_visible, cover = framework.gradient_cover;
  if (run.overlaps_gradients) {
    least = *run.overlaps_gradients ? 0.1 : 1;
    cover = *run.overlaps_gradients ? 0.7 : 0;
  }
  return visible(gradients, work.backward, least, cover) +
         visible(gathered, work.forward, framework.parameter_visible, framework.parameter_cover);
}

// Each layer's parameters are gathered before its forward and its backward pass, and its gradients are summed after the
// latter, while a neighbouring layer computes.
double of_shards(const RunContext& context, const StageParameters& parameters, const RankWork& work) {
  const auto& run = context.run;
  const auto& framework = context.framework;
  const auto groups = shard_groups(run);
  const auto layer = layer_parameters(run);
  const auto collective = [&](double bytes, const StageParameters& of) {
    return context.collectives.gather_in_calls(bytes * of.dense, groups.dense, framework.shard_gathers_per_layer,
                                               framework.shards_through_one_card) +
           context.collectives.gather(bytes * of.experts, groups.experts);
  };
  const double gather = collective(run.gathers_fp8 ? 1 : kBytesPerHalf, layer);
  const double gradient_bytes = gradient_message_bytes(context);
  double reduce = collective(gradient_bytes, layer);
  if (groups.replicas.size > 1)
    reduce += context.collectives.all_reduce(
        gradient_bytes * (layer.dense / groups.dense.size + layer.experts / groups.experts.size), groups.replicas);
  const double forward = visible(gather, work.layer_forward, framework.parameter_visible, framework.parameter_cover);
  const double backward =
      visible(gather + reduce, work.layer_backward, framework.gradient_visible, framework.gradient_cover);
  // Embedding and head: nothing computes while the first is gathered and the last is reduced.
  const StageParameters rest{.dense = std::max(0.0, parameters.dense - layer.dense * work.layers)};
  const double ends = gather + reduce + 0.5 * (2 * collective(kBytesPerHalf, rest) + collective(gradient_bytes, rest));
  // Stages of a pipeline keep what they have gathered until the step ends.
  if (run.pp > 1) {
    const double sums = visible(reduce, work.layer_backward, framework.gradient_visible, framework.gradient_cover);
    return work.layers * (forward + sums) + ends;
  }
  return run.micro_batches * (work.layers * (forward + backward) + ends);
}

}  // namespace

double data_parallel_seconds(const RunContext& context, const StageParameters& parameters, const RankWork& work) {
  const auto groups = shard_groups(context.run);
  if (groups.all_dense.size <= 1 && groups.all_experts.size <= 1) return 0;
  return context.run.zero == 3 ? of_shards(context, parameters, work) : of_replicas(context, parameters, work);
}

double optimizer_seconds(const RunContext& context, const StageParameters& parameters) {
  const auto& run = context.run;
  const auto groups = shard_groups(run);
  const double dense_group = run.zero > 0 ? groups.dense.size : 1;
  const double expert_group = run.zero > 0 ? groups.experts.size : 1;
  const double stepped = parameters.dense / dense_group + parameters.experts / expert_group;
  const double gradients = run.zero >= 2 ? stepped : parameters.sum();
  return context.kernels.memory_bound(kAdamBytes * stepped + kNormBytes * gradients, 4);
}

}  // namespace accel::predict
