#include "sim/predict/layer_costs.hpp"

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"

namespace accel::predict {
namespace {

CommunicationSeconds scaled(const CommunicationSeconds& seconds, double factor) {
  return {.tensor_parallel = seconds.tensor_parallel * factor,
          .context_parallel = seconds.context_parallel * factor,
          .expert_parallel = seconds.expert_parallel * factor};
}

CommunicationSeconds sum_of(const CommunicationSeconds& a, const CommunicationSeconds& b) {
  return {.tensor_parallel = a.tensor_parallel + b.tensor_parallel,
          .context_parallel = a.context_parallel + b.context_parallel,
          .expert_parallel = a.expert_parallel + b.expert_parallel};
}

// Builds one layer from its operators.
class Layer {
 public:
  Layer(const RunContext& context, bool is_sparse) : context_(context), run_(context.run), is_sparse_(is_sparse) {}

  LayerSeconds seconds() && {
    projections();
    if (is_sparse_) {
      experts();
    } else {
      mlp(run_.model.ffn / run_.tp, context_.tokens(), run_.recompute.mlp);
    }
    attention();
    norms();
    if (context_.has_small_products()) casts();
    tensor_parallel();
    context_parallel();
    recomputation();
    return seconds_;
  }

 private:
  // Returns the seconds of the forward pass.
  double product(double tokens, double outputs, double inputs, double count = 1) {
    const Matmul forward{.m = tokens, .n = outputs, .k = inputs, .count = count};
    const auto& kernels = context_.kernels;
    const double seconds = kernels.matmul(forward);
    seconds_.forward.products += seconds;
    seconds_.backward.products += kernels.matmul(forward.input_gradient()) + kernels.matmul(forward.weight_gradient()) +
                                  kernels.weight_update(outputs * inputs * count, update_bytes());
    return seconds;
  }

  // Of a parameter's sum of gradients over micro-batches: read and written in float32 by the product itself, or by a
  // kernel that also reads the new gradient. FSDP reduces instead.
  [[nodiscard]] double update_bytes() const {
    if (run_.zero == 3) return 0;
    if (run_.has_separate_gradient_sums) return 24;
    return context_.framework.gradient_bytes >= 4 ? 8 : 4;
  }

  void elementwise(double forward_bytes, double backward_bytes, int forward_kernels, int backward_kernels) {
    seconds_.forward.elementwise += context_.kernels.memory_bound(forward_bytes, forward_kernels);
    seconds_.backward.elementwise += context_.kernels.memory_bound(backward_bytes, backward_kernels);
  }

  void projections() {
    const auto& model = run_.model;
    const double tokens = context_.tokens();
    if (model.kv_lora > 0) {
      latent_projections();
    } else {
      product(tokens, (model.query_width() + model.key_value_width()) / run_.tp, model.hidden);
    }
    product(tokens, model.hidden, model.value_width() / run_.tp);
    // Bias or rotation of queries and keys, and their layout.
    const double width = (model.query_width() + model.key_value_width()) / run_.tp;
    const double passes = model.is_gated ? 2 : 1;
    const double bytes = 2 * kBytesPerHalf * tokens * width * passes;
    elementwise(bytes, bytes, 3, 3);
  }

  void latent_projections() {
    const auto& model = run_.model;
    const double tokens = context_.tokens();
    if (model.q_lora > 0) product(tokens, model.q_lora, model.hidden);
    product(tokens, model.query_width() / run_.tp, model.q_lora > 0 ? model.q_lora : model.hidden);
    product(tokens, model.kv_lora + model.rope_dim, model.hidden);
    const double up = model.heads * (model.head_dim - model.rope_dim) + model.value_width();
    const double seconds = product(tokens, up / run_.tp, model.kv_lora);
    if (run_.recompute.latent_projections) recomputed_parts_ += seconds;
  }

  void mlp(double width, double tokens, bool is_recomputed) {
    const double products = product(tokens, width * (run_.model.is_gated ? 2 : 1), run_.model.hidden) +
                            product(tokens, run_.model.hidden, width);
    const double elementwise = activation(tokens * width);
    if (is_recomputed) recomputed_parts_ += products + elementwise;
  }

  // Reads its inputs and writes an output, in the backward pass also the gradients; unfused kernels read and write
  // more.
  double activation(double elements) {
    const bool is_gated = run_.model.is_gated;
    double forward = is_gated ? 3 : 2, backward = is_gated ? 5 : 3;
    if (is_gated && !context_.framework.fuses_activation) forward = 5, backward = 9;
    const double seconds = context_.kernels.memory_bound(forward * kBytesPerHalf * elements);
    seconds_.forward.activation += seconds;
    seconds_.backward.activation += context_.kernels.memory_bound(backward * kBytesPerHalf * elements);
    return seconds;
  }

  // A rank has experts / ep experts, and gets its part of the tokens that all ranks of the group send.
  void experts() {
    const auto& model = run_.model;
    const double imbalance = context_.imbalance();
    const double sent = context_.tokens() / run_.tp * model.top_k;  // copies of tokens
    const double received = sent * imbalance * run_.etp;
    const double local = std::max(1.0, model.experts / run_.ep);
    const double width = model.moe_ffn / run_.etp;
    const double per_expert = std::max(1.0, std::floor(received / local));
    double seconds = product(per_expert, width * (model.is_gated ? 2 : 1), model.hidden, local) +
                     product(per_expert, model.hidden, width, local);
    seconds += activation(received * width);
    if (model.shared_ffn > 0) mlp(model.shared_ffn / run_.tp, context_.tokens(), run_.recompute.shared_experts);
    // Permutation of the tokens before and after the experts, and the router.
    const double bytes = 3 * 2 * kBytesPerHalf * received * model.hidden;
    elementwise(bytes, bytes, 8, 8);
    if (run_.recompute.experts) recomputed_parts_ += seconds;
    exchange_tokens(sent, received);
  }

  // Tokens travel to their experts and back. Ranks that divide an expert gather them, and sum the results.
  void exchange_tokens(double sent, double received) {
    const auto& model = run_.model;
    const auto& framework = context_.framework;
    const auto exchange = [&](double bytes_per_element) {
      return context_.imbalance() * framework.expert_visible *
             context_.collectives.all_to_all({.bytes = sent * model.hidden * bytes_per_element,
                                              .copies = model.top_k,
                                              .sends_once_per_node = framework.sends_tokens_once_per_node,
                                              .most_nodes = static_cast<double>(framework.most_expert_nodes)},
                                             {.stride = run_.etp, .size = run_.ep});
    };
    const double within_expert =
        2 * context_.collectives.gather(received * model.hidden * kBytesPerHalf, {.stride = 1, .size = run_.etp});
    const double wait = run_.ep > 1 ? context_.latencies.expert_synchronization * framework.expert_visible : 0;
    const double seconds = exchange(framework.dispatch_bytes) + exchange(kBytesPerHalf) + within_expert + wait;
    seconds_.forward.communication.expert_parallel = seconds;
    seconds_.backward.communication.expert_parallel = seconds;
  }

  void attention() {
    const auto& model = run_.model;
    const CausalAttention attention{.sequences = run_.mbs,
                                    .heads = model.heads / run_.tp,
                                    .head_dim = model.head_dim,
                                    .value_dim = model.value_width() / model.heads,
                                    .queries = run_.seq / run_.cp,
                                    .keys = run_.seq,
                                    .block = run_.seq / run_.cp};
    const bool is_fused = run_.attention != AttentionKernel::kUnfused;
    auto seconds = is_fused ? context_.kernels.fused_attention(attention, run_.attention)
                            : context_.kernels.unfused_attention(attention, context_.framework.has_dropout);
    if (model.window > 0 && is_fused) {
      const double share = std::min(1.0, 2 * model.window / run_.seq + 0.05);
      const double factor = 1 - (1 - share) / model.window_every;
      seconds.forward *= factor;
      seconds.backward *= factor;
    }
    seconds_.forward.attention += seconds.forward;
    seconds_.backward.attention += seconds.backward;
  }

  // Two norms, and two sums with the residual; with dropout also its mask.
  void norms() {
    const auto& framework = context_.framework;
    const double elements = context_.resident_tokens() * run_.model.hidden * framework.norm_passes;
    const double mask = framework.has_dropout ? 1 : 0;
    norm_bytes_ = 2 * (2 * kBytesPerHalf) * elements;
    const double forward = norm_bytes_ + 2 * (3 * kBytesPerHalf + mask) * elements;
    const double backward = 2 * (3 * kBytesPerHalf) * elements + 2 * (2 * kBytesPerHalf + mask) * elements;
    if (framework.compiles) {
      elementwise(forward, backward, 2, 3);
    } else {
      elementwise(forward, backward, 4, 8);
    }
  }

  // Casts of the products' operands to 8 bits, in two layouts. With one scale per tensor of the same step, the operands
  // are read once more.
  void casts() {
    const auto& model = run_.model;
    const double width = is_sparse_ ? model.moe_ffn * model.top_k / run_.tp : model.ffn / run_.tp;
    const double elements = context_.tokens() * (2 * model.hidden + width + model.query_width() / run_.tp);
    const double bytes = (kBytesPerHalf + 2) * elements * (context_.framework.compiles ? 2 : 1);
    elementwise(0.5 * bytes, 0.7 * bytes, 4, 6);
  }

  void recomputation() {
    const auto& recompute = run_.recompute;
    const auto& forward = seconds_.forward;
    if (recompute.is_full()) {
      seconds_.recompute = recompute.layers * forward.compute();
      seconds_.recommunication = scaled(forward.communication, recompute.layers);
      return;
    }
    seconds_.recompute = recomputed_parts_;
    if (recompute.attention) seconds_.recompute += forward.attention;
    if (recompute.is_by_operator())
      seconds_.recompute += recompute.products * forward.products + forward.elementwise + forward.activation;
    if (recompute.experts) seconds_.recommunication.expert_parallel = forward.communication.expert_parallel;
    if (recompute.norms) seconds_.recompute += context_.kernels.memory_bound(norm_bytes_, 2);
    if (recompute.activation) seconds_.recompute += forward.activation;
  }

  // Two regions per layer begin with a copy or an all-gather and end with a sum; experts exchange tokens instead of the
  // second.
  void tensor_parallel() {
    if (run_.tp <= 1) return;
    const RankGroup group{.stride = 1, .size = run_.tp};
    const double bytes = context_.tokens() * run_.model.hidden * kBytesPerHalf;
    const double regions = is_sparse_ && run_.model.shared_ffn == 0 ? 1 : 2;
    const double region =
        run_.sp ? 2 * context_.collectives.gather(bytes, group) : context_.collectives.all_reduce(bytes, group);
    // Products overlap with collectives in shared memory of the GPUs, inside of a domain only.
    const bool overlaps = run_.overlaps_tensor_parallel.value_or(context_.framework.tensor_visible < 1) &&
                          context_.collectives.is_in_one_domain(group);
    const double visible = overlaps ? std::min(context_.framework.tensor_visible, 0.35) : 1;
    seconds_.forward.communication.tensor_parallel = regions * region * visible;
    seconds_.backward.communication.tensor_parallel = regions * region * visible;
  }

  // Keys and values travel around a ring while the attention computes with those that arrived.
  void context_parallel() {
    if (run_.cp <= 1) return;
    const double bytes = context_.tokens() * run_.model.key_value_width() / run_.tp * kBytesPerHalf;
    const double ring = context_.collectives.ring_of_messages(bytes, {.stride = run_.tp, .size = run_.cp});
    const double parts = run_.cp * context_.kernels.memory_bound(0);
    seconds_.forward.communication.context_parallel = std::max(0.0, ring - seconds_.forward.attention) + parts;
    seconds_.backward.communication.context_parallel =
        std::max(0.0, 2 * ring - seconds_.backward.attention) + 2 * parts;
  }

  const RunContext& context_;
  const TrainingRun& run_;
  bool is_sparse_;
  double norm_bytes_ = 0;
  double recomputed_parts_ = 0;  // seconds of products and activations that single parts repeat
  LayerSeconds seconds_;
};

const Framework& framework_of(const TrainingRun& run) {
  const auto* framework = find_framework(run.framework);
  check_argument(framework != nullptr, "framework {}: unknown", run.framework);
  return *framework;
}

CommunicationSeconds mean(const CommunicationSeconds& a, double weight_a, const CommunicationSeconds& b,
                          double weight_b) {
  const double sum = weight_a + weight_b;
  return sum_of(scaled(a, weight_a / sum), scaled(b, weight_b / sum));
}

PassSeconds mean(const PassSeconds& a, double weight_a, const PassSeconds& b, double weight_b) {
  const auto of = [&](double PassSeconds::*member) {
    return (a.*member * weight_a + b.*member * weight_b) / (weight_a + weight_b);
  };
  return {.products = of(&PassSeconds::products),
          .attention = of(&PassSeconds::attention),
          .elementwise = of(&PassSeconds::elementwise),
          .activation = of(&PassSeconds::activation),
          .communication = mean(a.communication, weight_a, b.communication, weight_b)};
}

}  // namespace

RunContext::RunContext(const TrainingRun& run, const Hardware& hardware, const Gpu& gpu)
    : run(run),
      framework(framework_of(run)),
      gpu(gpu),
      kernels(gpu, hardware, run.precision),
      head_kernels(gpu, hardware, Precision::kBf16),
      collectives(run.system, gpu, hardware),
      efficiency(hardware.efficiency),
      latencies(hardware.latencies) {}

CommunicationSeconds LayerSeconds::communication() const {
  return sum_of(sum_of(forward.communication, backward.communication), recommunication);
}

LayerSeconds LayerSeconds::mean(const LayerSeconds& a, double weight_a, const LayerSeconds& b, double weight_b) {
  return {.forward = predict::mean(a.forward, weight_a, b.forward, weight_b),
          .backward = predict::mean(a.backward, weight_a, b.backward, weight_b),
          .recompute = (a.recompute * weight_a + b.recompute * weight_b) / (weight_a + weight_b),
          .recommunication = predict::mean(a.recommunication, weight_a, b.recommunication, weight_b)};
}

LayerSeconds layer_seconds(const RunContext& context) {
  const auto& model = context.run.model;
  if (model.experts == 0) return Layer(context, false).seconds();
  const auto sparse = Layer(context, true).seconds();
  if (model.dense_layers == 0) return sparse;
  const double dense = model.dense_layers;
  return LayerSeconds::mean(Layer(context, false).seconds(), dense, sparse, model.layers - dense);
}

ForwardAndBackward embedding_seconds(const RunContext& context) {
  const double bytes = kBytesPerHalf * context.tokens() * context.run.model.hidden;
  return {context.kernels.memory_bound(2 * bytes, 2), context.kernels.memory_bound(4 * bytes, 2)};
}

ForwardAndBackward head_seconds(const RunContext& context) {
  const auto& run = context.run;
  const double vocab = run.model.vocab / run.tp;
  const Matmul product{.m = context.tokens(), .n = vocab, .k = run.model.hidden};
  const double logits = context.tokens() * vocab;
  // The head's product is not in 8 bits; the loss reads and writes logits in float32.
  const KernelTimes& kernels = context.head_kernels;
  return {kernels.matmul(product) + kernels.memory_bound(logits * context.framework.loss_bytes, 4),
          kernels.matmul(product.input_gradient()) + kernels.matmul(product.weight_gradient()) +
              kernels.memory_bound(logits * 10, 3)};
}

}  // namespace accel::predict
