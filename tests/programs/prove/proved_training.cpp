// A model of divided layers for the tests of `sim-run prove`. With the name of a fault as its argument it makes one of
// the mistakes that people make in such models.
#include <torch/torch.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <accel/parallel.hpp>
#include <iostream>
#include <set>

namespace {

using namespace accel::parallel;
namespace nn = torch::nn;

constexpr std::int64_t kVocab = 8, kWidth = 6, kInner = 8, kLength = 8, kSamples = 32;

std::string fault;
const std::set<std::string> kFaults{
    "none", "output_divided_by_tp", "bias_on_every_rank", "missing_reduction", "missing_reduction_in_backward",
    "reduced_twice", "norm_without_shared_parameter", "norm_reduced_twice", "wrong_part", "parts_in_reverse",
    "weights_drawn_per_part", "slice_instead_of_reduce_scatter", "gradient_gathered_twice", "loss_times_tp",
    "loss_of_first_half", "averaged_input", "stale_weight", "gradient_scaled_by_dp", "missing_data_average",
    "shifted_targets", "bias_of_another_part", "shifted_after_the_cut", "positions_within_the_part",
    "attention_to_own_keys", "keys_in_another_order", "key_gradients_of_own_queries", "mean_of_means",
    "expert_gradient_not_scaled", "expert_gradient_scaled_twice", "experts_of_another_rank", "tokens_dropped_per_rank",
    "failing_second_step", "failing_before_prepare", "failing_first_forward", "wrong_clipping",
    // Right programs.
    "right_adam", "right_dropout", "right_evaluation", "right_positions_inside", "right_accumulation"};

bool has(const char* name) { return fault == name; }

// An RMS norm whose weight every rank holds.
struct NormImpl : nn::Module {
  explicit NormImpl(accel::Group group_of_ranks) : group(std::move(group_of_ranks)) {
    weight = register_parameter("weight", at::linspace(0.5, 1.5, kWidth, at::kDouble));
  }
  Sharded<1> forward(const Sharded<1>& values) {
    auto own = has("norm_without_shared_parameter") ? weight : shared_parameter(weight, group);
    if (has("norm_reduced_twice")) own = shared_parameter(own, group);
    return {values.local / (values.local.square().mean(-1, true) + 1e-5).sqrt() * own};
  }
  accel::Group group;
  at::Tensor weight;
};
TORCH_MODULE(Norm);

struct FeedForwardImpl : nn::Module {
  explicit FeedForwardImpl(accel::Group group_of_ranks) : group(std::move(group_of_ranks)) {
    if (has("weights_drawn_per_part")) {
      for (int draw = 0; draw < group.rank(); ++draw) torch::rand({1});
    }
    expansion =
        register_module("expansion", ColumnParallelLinear(ParallelLinearOptions{.in = kWidth, .out = kInner}, group));
    projection =
        register_module("projection", RowParallelLinear(ParallelLinearOptions{.in = kInner, .out = kWidth}, group));
    dropout = register_module("dropout", nn::Dropout(has("right_dropout") ? 0.5 : 0.0));
  }
  Sharded<1> forward(const Sharded<1>& values) {
    auto entered = gather_copied(values, group);
    if (has("missing_reduction_in_backward"))  // the gradient of the rank's own product only
      entered.local = with_gradient(
          values.local, [&](const at::Tensor& part) { return all_gathered_parts(part, 1, group); },
          [&](const at::Tensor& gradient) { return own_part(gradient, 1, group); });
    if (has("averaged_input")) entered.local = entered.local / group.size();
    auto hidden = accel::call(expansion, entered);
    if (has("bias_of_another_part")) hidden.local = hidden.local - expansion->bias + at::flip(expansion->bias, 0);
    hidden.local = hidden.local.relu();
    if (has("right_dropout")) {
      const CutRandom random(group);
      hidden.local = dropout(hidden.local);
    }
    if (has("stale_weight")) {
      const auto& weight = projection->weight;
      if (!first_weight.defined()) first_weight = weight.detach().clone();
      const auto used = group.size() > 1 ? first_weight + weight - weight.detach() : weight;
      return reduce_scatter<1>({at::linear(hidden.local, used) + 0 * projection->bias}, group);
    }
    auto product = [&] { return at::linear(hidden.local, projection->weight); };
    if (has("missing_reduction")) return {own_part(product(), 1, group) + projection->bias};
    if (has("slice_instead_of_reduce_scatter")) return scatter<1>(Replicated{product() + projection->bias}, group);
    if (has("bias_on_every_rank")) return reduce_scatter<1>({product() + projection->bias}, group);
    if (has("reduced_twice"))
      return scatter<1>(reduce({reduce({product()}, group).local + projection->bias}, group), group);
    auto output = accel::call(projection, hidden, ToSequence());
    if (has("output_divided_by_tp")) output.local = output.local / group.size();
    return output;
  }
  accel::Group group;
  ColumnParallelLinear expansion{nullptr};
  RowParallelLinear projection{nullptr};
  nn::Dropout dropout{nullptr};
  at::Tensor first_weight;
};
TORCH_MODULE(FeedForward);

// The complete sequence.
struct WholeImpl : nn::Module {
  explicit WholeImpl(accel::Group group_of_ranks) : group(std::move(group_of_ranks)) {}
  Replicated forward(const Sharded<1>& values) {
    auto complete = gather(values, group);
    if (has("wrong_part")) complete.local = complete.local.roll(complete.local.size(1) / group.size(), 1);
    if (has("parts_in_reverse")) {
      auto parts = at::chunk(complete.local, group.size(), 1);
      std::reverse(parts.begin(), parts.end());
      complete.local = at::cat(parts, 1);
    }
    return complete;
  }
  accel::Group group;
};
TORCH_MODULE(Whole);

// Causal attention over a sequence that is divided over the ranks of a group.
struct AttentionImpl : nn::Module {
  explicit AttentionImpl(accel::Group group_of_ranks) : group(std::move(group_of_ranks)) {
    projection = register_module("projection", nn::Linear(nn::LinearOptions(kWidth, 3 * kWidth)));
  }
  at::Tensor forward(const at::Tensor& values, const SequencePlan& plan) {
    const auto parts = projection(values).unsqueeze(1).chunk(3, -1);
    auto keys = parts[1].contiguous(), mixed = parts[2].contiguous();
    const ContextAttentionOptions options{.is_causal = true};
    if (has("attention_to_own_keys"))
      return at::scaled_dot_product_attention(parts[0], keys, mixed, {}, 0.0, true).squeeze(1);
    if (has("key_gradients_of_own_queries"))
      keys = with_gradient(
          keys, [](const at::Tensor& x) { return x.view_as(x); },
          [&](const at::Tensor& gradient) { return gradient / group.size(); });
    const SequencePlan other({.length = plan.length(), .num_ranks = plan.num_ranks()});
    const auto& order = has("keys_in_another_order") ? other : plan;
    return all_gather_attention(parts[0].contiguous(), keys, mixed, order, group, options).squeeze(1);
  }
  accel::Group group;
  nn::Linear projection{nullptr};
};
TORCH_MODULE(Attention);

const accel::Group& context_of(const accel::DeviceMesh& mesh) {
  return mesh["cp"].size() > 1 ? mesh["cp"] : mesh["sp"];
}

struct Model : nn::Module {
  explicit Model(const accel::DeviceMesh& mesh)
      : group(mesh["tp"]), context(context_of(mesh)), ranks(mesh["dp_cp"].size()) {
    embedding = register_module("embedding", VocabParallelEmbedding(nn::EmbeddingOptions(kVocab, kWidth), group));
    norm = register_module("norm", Norm(group));
    feed_forward = register_module("feed_forward", FeedForward(group));
    whole = register_module("whole", Whole(group));
    positions = register_module("positions", nn::Embedding(kLength, kWidth));
    attention = register_module("attention", Attention(context));
    MixtureOfExpertsOptions options{.width = kWidth, .inner = kInner, .num_experts = 4};
    if (has("tokens_dropped_per_rank")) options.capacity_factor = 0.6;
    mixture = register_module("mixture", MixtureOfExperts(options, mesh));
    output = register_module("output", ColumnParallelLinear(ParallelLinearOptions{.in = kWidth, .out = kVocab}, group));
    to(at::kDouble);
  }
  // Complete logits.
  at::Tensor forward(const at::Tensor& given) {
    const auto tokens = has("right_positions_inside") ? part_of(given) : given;
    auto values = accel::call(embedding, tokens, ToSequence());
    values.local = values.local + accel::call(feed_forward, accel::call(norm, values)).local;
    auto complete = accel::call(whole, values);
    const auto plan = plan_of(tokens.size(1));
    const auto ids = has("positions_within_the_part") ? at::arange(tokens.size(1)) : position_ids(plan, context.rank());
    complete.local = complete.local + accel::call(positions, ids);
    complete.local = complete.local + accel::call(attention, complete.local, plan);
    complete.local = complete.local + accel::call(mixture, complete).values.local;
    const auto logits = accel::call(output, copy(complete, group));
    auto all = gather(logits, group).local;
    if (has("gradient_gathered_twice"))
      all = with_gradient(
          all, [](const at::Tensor& x) { return x.view_as(x); },
          [&](const at::Tensor& gradient) { return gradient * group.size(); });
    if (has("gradient_scaled_by_dp"))
      all = with_gradient(
          all, [](const at::Tensor& x) { return x.view_as(x); },
          [&](const at::Tensor& gradient) { return gradient * ranks; });
    return all;
  }
  // This rank's positions.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& complete) const {
    return shard_sequence(complete, 1, plan_of(complete.size(1) / context.size()), context.rank());
  }
  [[nodiscard]] SequencePlan plan_of(std::int64_t local_length) const {
    return SequencePlan(
        {.length = local_length * context.size(), .num_ranks = context.size(), .order = SequenceOrder::kZigzag});
  }
  accel::Group group, context;
  int ranks;
  VocabParallelEmbedding embedding{nullptr};
  Norm norm{nullptr};
  FeedForward feed_forward{nullptr};
  Whole whole{nullptr};
  nn::Embedding positions{nullptr};
  Attention attention{nullptr};
  MixtureOfExperts mixture{nullptr};
  ColumnParallelLinear output{nullptr};
};

struct Tokens {
  [[nodiscard]] std::int64_t size() const { return kSamples; }
  [[nodiscard]] std::vector<at::Tensor> get(std::int64_t index) const {
    const auto tokens = (at::arange(kLength + 1) * (index + 3) + index).remainder(kVocab);
    return {tokens.slice(0, 0, kLength), tokens.slice(0, 1)};
  }
};

int train(int, char**) {
  accel::Accelerator accelerator(
      {.gradient_accumulation_steps = has("right_accumulation") || has("wrong_clipping") ? 4 : 1});
  accel::set_seed(7);
  if (has("failing_before_prepare") && accelerator.process_index() == 3) throw accel::ConfigError("not this layout");
  auto net = std::make_shared<Model>(accelerator.mesh());
  std::shared_ptr<torch::optim::Optimizer> chosen;
  if (has("right_adam"))
    chosen = std::make_shared<accel::optim::Adam>(net->parameters(), accel::optim::AdamOptions{.lr = 0.1});
  else
    chosen = std::make_shared<accel::optim::SGD>(net->parameters(), accel::optim::SGDOptions{.lr = 0.1});
  accel::DataLoader loader(Tokens{}, {.batch_size = 8}), others(Tokens{}, {.batch_size = 12});
  auto [model, optimizer, batches, evaluation] = accelerator.prepare(net, chosen, loader, others);
  const auto& tp = accelerator.mesh()["tp"];
  const auto& mesh = accelerator.mesh();
  for (auto& item : net->mixture->named_parameters()) {
    if (!parameter_cuts(*net->mixture).contains(item.key())) continue;
    const double size = mesh["ep"].size();
    if (has("expert_gradient_not_scaled")) item.value().register_hook([size](const at::Tensor& g) { return g * size; });
    if (has("expert_gradient_scaled_twice"))
      item.value().register_hook([size](const at::Tensor& g) { return g / size; });
    if (has("experts_of_another_rank")) {
      const torch::NoGradGuard no_grad;
      const auto all = all_gathered_parts(item.value(), 0, mesh["ep"]);
      item.value().copy_(own_part(all.roll(item.value().size(0), 0), 0, mesh["ep"]));
    }
  }
  int step = 0;
  for (auto& batch : batches) {
    auto window = accelerator.accumulate(model);
    const auto part = [&](const at::Tensor& tokens) { return net->part_of(tokens); };
    const auto tokens = has("right_positions_inside") ? batch[0] : part(batch[0]);
    std::optional<decltype(accelerator.no_sync(model))> local;
    if (has("missing_data_average")) local.emplace(accelerator.no_sync(model));
    if (has("failing_first_forward") && accelerator.process_index() == 3) throw accel::ArgumentError("not these sizes");
    const auto logits = model(tokens).flatten(0, 1);
    // Some labels do not count, and not equally many on each rank.
    const auto labels = batch[1].masked_fill(batch[1].eq(1), -100);
    auto targets = part(labels).flatten();
    if (has("shifted_after_the_cut"))
      targets = at::cat({tokens.slice(1, 1), at::full({tokens.size(0), 1}, -100, at::kLong)}, 1).flatten();
    if (has("shifted_targets")) targets = targets.roll(tp.rank());
    const auto sum = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum);
    const auto count = targets.ne(-100).sum();
    auto loss = has("mean_of_means") ? sum / count : token_mean(sum, count, mesh["dp_cp"]);
    if (has("loss_times_tp")) loss = loss * tp.size();
    if (has("loss_of_first_half")) {
      const auto half = targets.size(0) / 2;
      if (accelerator.data_parallel_rank() > 0)
        loss = loss * 0 + at::cross_entropy_loss(logits.slice(0, 0, half), targets.slice(0, 0, half));
    }
    accelerator.backward(loss);
    // A norm of the rank's own parts.
    if (has("wrong_clipping") && accelerator.sync_gradients()) nn::utils::clip_grad_norm_(net->parameters(), 1e-3);
    if (has("right_accumulation") && accelerator.sync_gradients())
      accelerator.clip_grad_norm_(model.parameters(), 1e-3);
    optimizer.step();
    optimizer.zero_grad();
    if (has("right_evaluation")) {
      const torch::NoGradGuard no_grad;  // without eval(): the model has nothing that depends on the mode
      for (auto& samples : evaluation) model(part(samples[0]));
    }
    if (has("failing_second_step") && ++step == 2 && tp.size() > 1) throw accel::Error("the second step");
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  fault = argc > 1 ? argv[1] : "none";
  if (!kFaults.contains(fault)) {
    std::cerr << "unknown fault " << fault << '\n';
    return 2;
  }
  return accel::run(argc, argv, train);
}
