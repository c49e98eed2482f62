#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <torch/custom_class.h>

#include <cmath>
#include <limits>
#include <optional>

#include "reference/context_parallel/attention_inputs.hpp"

namespace accel::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A tensor on its way to the next rank of a ring, and the one that arrives from the previous rank.
class RingExchange {
 public:
  // Even ranks send first. With NCCL, two ranks that both sent first would wait for each other.
  RingExchange(at::Tensor outgoing, const Group& group)
      : outgoing_(std::move(outgoing)), incoming_(group.size() == 1 ? outgoing_ : at::empty_like(outgoing_)) {
    if (group.size() == 1) return;
    const int next = (group.rank() + 1) % group.size(), previous = (group.rank() + group.size() - 1) % group.size();
    const bool is_even = group.rank() % 2 == 0;
    if (is_even) sending_ = group.send(outgoing_, next);
    receiving_ = group.recv(incoming_, previous);
    if (!is_even) sending_ = group.send(outgoing_, next);
  }

  at::Tensor arrived() {
    receiving_.wait();
    sending_.wait();
    return incoming_;
  }

 private:
  at::Tensor outgoing_, incoming_;
  Work sending_, receiving_;
};

// Calls visit(held, source) with the tensor of every rank, first the own one, while the next one is on its way.
template <typename Visit>
void for_each_rank(at::Tensor held, const Group& group, Visit&& visit) {
  for (int step = 0; step < group.size(); ++step) {
    std::optional<RingExchange> next;
    if (step + 1 < group.size()) next.emplace(held, group);
    visit(held, (group.rank() + group.size() - step) % group.size());
    if (next) held = next->arrived();
  }
}

// The attention of some queries to some keys, and the logarithms of the sums of exp(score) over these keys, which are
// -inf where no key is seen.
struct Seen {
  at::Tensor output = {}, log_sums = {};
};

// exp(x - log_sums), which is 0 where nothing was seen.
at::Tensor normalized(const at::Tensor& x, const at::Tensor& log_sums) {
  return (x - log_sums.masked_fill(log_sums.eq(-kInfinity), 0)).exp();
}

// What queries see among the keys of both.
Seen merged(const Seen& left, const Seen& right) {
  if (!left.output.defined()) return right;
  const auto log_sums = at::logaddexp(left.log_sums, right.log_sums);
  return {
      .output = left.output * normalized(left.log_sums, log_sums) + right.output * normalized(right.log_sums, log_sums),
      .log_sums = log_sums};
}

// One call of ring_attention. Chunks of queries have shape (batch, key-value heads, heads per key-value head * chunk
// length, width), those of keys (batch, key-value heads, chunk length, width), so that the heads of a group share a
// product.
struct Ring : torch::CustomClassHolder {
  Ring(const SequencePlan& of_sequence, Group of_ranks) : plan(of_sequence), group(std::move(of_ranks)) {}

  SequencePlan plan;
  Group group;
  bool is_causal = false;
  double scale = 1;
  std::int64_t key_heads = 1, heads_per_key_head = 1;
  at::ScalarType type = at::kFloat;  // of the computation
  at::Tensor key_mask;               // of the complete sequence

  [[nodiscard]] std::vector<at::Tensor> query_chunks(const at::Tensor& queries) const {
    std::vector<at::Tensor> chunks;
    const auto by_group = queries.to(type).unflatten(1, {key_heads, heads_per_key_head});
    for (const auto& chunk : by_group.split(plan.chunk_length(), 3)) chunks.push_back(chunk.flatten(2, 3));
    return chunks;
  }
  [[nodiscard]] at::Tensor joined(const std::vector<at::Tensor>& chunks) const {
    std::vector<at::Tensor> by_group;
    for (const auto& chunk : chunks) by_group.push_back(chunk.unflatten(2, {heads_per_key_head, plan.chunk_length()}));
    return at::cat(by_group, 3).flatten(1, 2);
  }
  // Keys and values are stacked while they travel: (2, batch, key-value heads, local length, width).
  [[nodiscard]] at::Tensor key_chunk(const at::Tensor& held, int index) const {
    return held.narrow(3, index * plan.chunk_length(), plan.chunk_length());
  }

  [[nodiscard]] at::Tensor scores(const at::Tensor& queries, const at::Tensor& keys, const ChunkPair& pair,
                                  int source) const {
    auto scores = at::matmul(queries, keys.transpose(-2, -1)).mul_(scale);
    const auto length = plan.chunk_length();
    if (pair.is_diagonal) {
      const auto later = at::ones({length, length}, keys.options().dtype(at::kBool)).triu(1);
      scores.masked_fill_(later.repeat({heads_per_key_head, 1}), -kInfinity);
    }
    if (key_mask.defined()) {
      const auto chunk = plan.chunks(source)[static_cast<std::size_t>(pair.keys)];
      const auto visible = key_mask.narrow(1, chunk * length, length).unsqueeze(1).unsqueeze(1);
      scores.masked_fill_(visible.logical_not(), -kInfinity);
    }
    return scores;
  }
};

struct RingAttention : torch::autograd::Function<RingAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& queries, const at::Tensor& keys,
                            const at::Tensor& values, const c10::intrusive_ptr<Ring>& ring) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto query_chunks = ring->query_chunks(queries);
    std::vector<Seen> seen(query_chunks.size());
    for_each_rank(at::stack({keys, values}), ring->group, [&](const at::Tensor& held, int source) {
      for (const auto& pair : attended_chunks(ring->plan, ring->group.rank(), source, ring->is_causal)) {
        const auto chunk = ring->key_chunk(held, pair.keys).to(ring->type);
        const auto index = static_cast<std::size_t>(pair.queries);
        const auto scores = ring->scores(query_chunks[index], chunk[0], pair, source);
        const auto log_sums = scores.logsumexp(-1, /*keepdim=*/true);
        seen[index] =
            merged(seen[index], {.output = at::matmul(normalized(scores, log_sums), chunk[1]), .log_sums = log_sums});
      }
    });
    std::vector<at::Tensor> outputs, log_sums;
    for (const auto& chunk : seen) {
      outputs.push_back(chunk.output);
      log_sums.push_back(chunk.log_sums);
    }
    const auto output = ring->joined(outputs);
    context->save_for_backward({queries, keys, values, output, ring->joined(log_sums)});
    context->saved_data["ring"] = c10::IValue::make_capsule(ring);
    return output.to(queries.scalar_type());
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto capsule = context->saved_data["ring"].toCapsule();
    const auto& ring = static_cast<const Ring&>(*capsule);
    const auto saved = context->get_saved_variables();
    const auto output_gradient = gradients[0].to(ring.type);
    const auto queries = ring.query_chunks(saved[0]), log_sums = ring.query_chunks(saved[4]),
               outer = ring.query_chunks(output_gradient),
               // A score's gradient is its weight times (the gradient of its weight - this sum).
        weighted_sums = ring.query_chunks((output_gradient * saved[3]).sum(-1, /*keepdim=*/true));
    std::vector<at::Tensor> query_gradients;
    for (const auto& chunk : queries) query_gradients.push_back(at::zeros_like(chunk));

    // The gradients of a rank's keys follow the keys and arrive at that rank after the last step.
    std::optional<RingExchange> key_gradients;
    for_each_rank(at::stack({saved[1], saved[2]}), ring.group, [&](const at::Tensor& held, int source) {
      auto held_gradient = at::zeros_like(held, held.options().dtype(ring.type));
      for (const auto& pair : attended_chunks(ring.plan, ring.group.rank(), source, ring.is_causal)) {
        const auto chunk = ring.key_chunk(held, pair.keys).to(ring.type);
        const auto i = static_cast<std::size_t>(pair.queries);
        const auto weights = normalized(ring.scores(queries[i], chunk[0], pair, source), log_sums[i]);
        const auto weight_gradients = at::matmul(outer[i], chunk[1].transpose(-2, -1));
        const auto score_gradients = weights * (weight_gradients - weighted_sums[i]) * ring.scale;
        query_gradients[i].add_(at::matmul(score_gradients, chunk[0]));
        auto chunk_gradient = ring.key_chunk(held_gradient, pair.keys);
        chunk_gradient[0].add_(at::matmul(score_gradients.transpose(-2, -1), queries[i]));
        chunk_gradient[1].add_(at::matmul(weights.transpose(-2, -1), outer[i]));
      }
      if (key_gradients) held_gradient.add_(key_gradients->arrived());
      key_gradients.emplace(held_gradient, ring.group);
    });
    const auto own = key_gradients->arrived().to(saved[1].scalar_type());
    return {ring.joined(query_gradients).to(saved[0].scalar_type()), own[0], own[1], at::Tensor()};
  }
};

}  // namespace

at::Tensor ring_attention(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                          const SequencePlan& plan, const Group& group, const ContextAttentionOptions& options) {
  check_attention("ring_attention", {queries, keys, values}, plan, group, options);
  if (queries.numel() == 0) return queries.clone();
  auto ring = c10::make_intrusive<Ring>(plan, group);
  ring->is_causal = options.is_causal;
  ring->scale = options.scale.value_or(1 / std::sqrt(static_cast<double>(queries.size(3))));
  ring->key_heads = keys.size(1);
  ring->heads_per_key_head = queries.size(1) / keys.size(1);
  ring->type = at::toOpMathType(queries.scalar_type());
  ring->key_mask = complete_key_mask(options, plan, group);
  return RingAttention::apply(queries, keys, values, ring);
}

}  // namespace accel::parallel
