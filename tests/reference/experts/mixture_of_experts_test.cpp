// A mixture on several ranks is compared with a dense computation on one rank, in which every expert processes every
// token. float64 within 1e-12, because softmax is not exact.
#include "reference/experts/mixture_of_experts.hpp"

#include <gmock/gmock.h>

#include <cmath>
#include <numeric>
#include <optional>

#include "reference/core/errors.hpp"
#include "reference/modules/call.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::HasSubstr;
using Tensors = std::map<std::string, at::Tensor>;

struct MixtureRun {
  int ep = 1, replicas = 1, tp = 1;
  std::vector<std::int64_t> tokens = {};  // of each data rank; may be 0
  MixtureOfExpertsOptions options = {};
  std::uint64_t seed = 0;

  [[nodiscard]] ParallelismConfig layout() const {
    return {.dp_replicate_size = replicas, .tp_size = tp, .ep_size = ep};
  }
  [[nodiscard]] int num_ranks() const { return ep * replicas * tp; }
  [[nodiscard]] std::int64_t num_tokens() const {
    return std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
  }
};

at::Tensor reals(const std::vector<std::int64_t>& sizes, std::uint64_t seed) {
  return at::randn(sizes, make_generator(seed), at::TensorOptions(at::kDouble));
}

MixtureOfExperts make_mixture(const MixtureRun& run, const DeviceMesh& mesh) {
  const GeneratorScope scope(make_generator(run.seed));
  MixtureOfExperts mixture(run.options, mesh);
  mixture->to(at::kDouble);
  return mixture;
}

at::Tensor activated(const MixtureOfExpertsOptions& options, const at::Tensor& up, const at::Tensor& gate) {
  switch (options.activation) {
    case ExpertActivation::kSwiGLU: return up * gate * at::sigmoid(gate);
    case ExpertActivation::kGelu: return 0.5 * up * (1 + at::tanh(std::sqrt(2 / M_PI) * (up + 0.044715 * up.pow(3))));
    default: return up.clamp_min(0);
  }
}

// Plain autograd over the complete parameters: every expert runs on every token, and the gates of experts that a token
// did not choose are 0.
MixtureOutput dense(const MixtureOfExpertsOptions& options, const Tensors& parameters, const at::Tensor& values) {
  const auto product = [&](const std::string& name, const at::Tensor& inputs) {
    const auto outputs = at::matmul(inputs, parameters.at("experts." + name));
    return options.bias ? outputs + parameters.at("experts." + name + "_bias").unsqueeze(1) : outputs;
  };
  const auto logits = at::matmul(values, parameters.at("router.weight").t());
  const auto probabilities = logits.exp() / logits.exp().sum(-1, true);
  const auto threshold = std::get<0>(at::topk(probabilities, options.top_k)).narrow(-1, options.top_k - 1, 1);
  const auto is_chosen = probabilities.ge(threshold).to(at::kDouble);
  auto gates = probabilities * is_chosen;
  if (options.normalize_gates) gates = gates / gates.sum(-1, true);
  const auto all = values.unsqueeze(0).expand({options.num_experts, -1, -1});
  const auto gate_inputs = options.activation == ExpertActivation::kSwiGLU ? product("gate_proj", all) : at::Tensor();
  const auto outputs = product("down_proj", activated(options, product("up_proj", all), gate_inputs));
  const auto balance = (is_chosen.mean(0) / options.top_k * probabilities.mean(0)).sum() * options.num_experts;
  const auto z = logits.exp().sum(-1).log().square().mean();
  return {.values = (outputs * gates.t().unsqueeze(-1)).sum(0),
          .auxiliary_loss = balance * options.aux_loss_weight + z * options.z_loss_weight};
}

at::Tensor loss_of(const at::Tensor& outputs, const at::Tensor& factors) { return (outputs * outputs * factors).sum(); }

// Complete parameters, for which `of` returns a rank's part.
template <typename Function>
Tensors completed(const MixtureOfExperts& mixture, Function&& of) {
  Tensors all;
  const auto cuts = parameter_cuts(*mixture);
  for (const auto& item : mixture->named_parameters()) {
    const auto cut = cuts.find(item.key());
    const auto part = of(item.key(), item.value());
    all[item.key()] = cut == cuts.end() ? part.detach().clone() : cut->second.whole_of(part);
  }
  return all;
}

// Every tensor-parallel rank has all tokens of its data-parallel rank.
MixtureOutput outputs_of(MixtureOfExperts& mixture, const at::Tensor& values) {
  const auto output = mixture->forward(Replicated{values});
  return {.values = output.values.local, .auxiliary_loss = output.auxiliary_loss};
}

// Takes plain SGD steps. Gradients are averaged as DDP does: those of experts over the ranks that hold them, others
// over all ranks with different tokens.
Tensors trained(const MixtureRun& run, const DeviceMesh& mesh, const at::Tensor& values, const at::Tensor& factors,
                int steps) {
  auto mixture = make_mixture(run, mesh);
  const auto cuts = parameter_cuts(*mixture);
  const auto size = mesh["dp_cp"].size();
  for (int step = 0; step < steps; ++step) {
    mixture->zero_grad();
    const auto output = outputs_of(mixture, values);
    (loss_of(output.values, factors) * size + output.auxiliary_loss).backward();
    const c10::NoGradGuard no_grad;
    for (const auto& item : mixture->named_parameters()) {
      auto gradient = item.value().grad().clone();
      mesh[cuts.count(item.key()) != 0 ? "expert_dp" : "dp_cp"].all_reduce(gradient, ReduceOp::kMean).wait();
      item.value().sub_(gradient, 0.05);
    }
  }
  return completed(mixture, [](const std::string& /*name*/, const at::Tensor& own) { return own; });
}

Tensors trained_densely(const MixtureRun& run, const at::Tensor& values, const at::Tensor& factors, int steps) {
  auto parameters = completed(make_mixture(run, DeviceMesh()),
                              [](const std::string& /*name*/, const at::Tensor& own) { return own; });
  for (int step = 0; step < steps; ++step) {
    for (auto& [name, parameter] : parameters) parameter = parameter.detach().requires_grad_();
    const auto output = dense(run.options, parameters, values);
    (loss_of(output.values, factors) + output.auxiliary_loss).backward();
    for (auto& [name, parameter] : parameters) parameter = parameter.detach() - 0.05 * parameter.grad();
  }
  return parameters;
}

MixtureRun any_run() {
  MixtureRun run{.ep = pick(1, 5), .replicas = pick(1, 3)};
  for (int rank = 0; rank < run.ep * run.replicas; ++rank)
    run.tokens.push_back(one_in(4) ? 0 : pick<std::int64_t>(1, 6));
  run.tokens.back() += 1;
  auto& options = run.options;
  options = {.width = pick<std::int64_t>(1, 5), .inner = pick<std::int64_t>(1, 5)};
  options.num_experts = run.ep * pick<std::int64_t>(1, 4);
  options.top_k = pick<std::int64_t>(1, std::min<std::int64_t>(4, options.num_experts + 1));
  options.activation = pick_from({ExpertActivation::kSwiGLU, ExpertActivation::kGelu, ExpertActivation::kRelu});
  options.bias = one_in(2);
  options.normalize_gates = options.top_k > 1 && one_in(2);
  options.aux_loss_weight = pick_from({0.0, 0.5});
  options.z_loss_weight = pick_from({0.0, 0.25});
  run.seed = pick<std::uint64_t>(0, 1000);
  return run;
}

// The rows of the rank's tokens: data ranks are those of "dp_cp", in its order.
at::Tensor own_rows(const MixtureRun& run, const at::Tensor& all, const DeviceMesh& mesh) {
  return all.split_with_sizes(run.tokens)[static_cast<std::size_t>(mesh["dp_cp"].rank())].clone();
}

bool is_close(const at::Tensor& found, const at::Tensor& expected) {
  return at::allclose(found, expected, 1e-12, 1e-12);
}

void expect_equals_dense(const MixtureRun& run, int steps) {
  const auto values = reals({run.num_tokens(), run.options.width}, run.seed + 1) * 0.5;
  const auto factors = reals({run.num_tokens(), run.options.width}, run.seed + 2) * 0.5;
  const auto expected = trained_densely(run, values, factors, steps);
  const auto of_ranks = collect_ranks(Backend::kSim, run.num_ranks(), [&](RankContext& rank) {
    const DeviceMesh mesh(rank, run.layout());
    return trained(run, mesh, own_rows(run, values, mesh), own_rows(run, factors, mesh), steps);
  });
  for (const auto& found : of_ranks) {
    for (const auto& [name, parameter] : expected) {
      RC_LOG(name);
      RC_ASSERT(is_close(found.at(name), parameter));
    }
  }
}

TEST(MixtureOfExpertsTest, ValuesAndInputGradientsAreThoseOfTheDenseComputation) {
  expect_property(60, [] {
    const auto run = any_run();
    const auto all = reals({run.num_tokens(), run.options.width}, run.seed + 1);
    auto whole = all.clone().requires_grad_();
    const auto parameters = completed(make_mixture(run, DeviceMesh()),
                                      [](const std::string& /*name*/, const at::Tensor& own) { return own; });
    const auto expected = dense(run.options, parameters, whole);
    (expected.values.sum() + expected.auxiliary_loss).backward();
    run_ranks(Backend::kSim, run.num_ranks(), [&](RankContext& rank) {
      const DeviceMesh mesh(rank, run.layout());
      auto mixture = make_mixture(run, mesh);
      auto own = own_rows(run, all, mesh).requires_grad_();
      const auto found = outputs_of(mixture, own);
      RC_ASSERT(is_close(found.values, own_rows(run, expected.values, mesh)));
      RC_ASSERT(is_close(found.auxiliary_loss, expected.auxiliary_loss));
      const auto size = mesh["dp_cp"].size();
      (found.values.sum() * size + found.auxiliary_loss).backward();
      RC_ASSERT(is_close(own.grad() / size, own_rows(run, whole.grad(), mesh)));
    });
  });
}

TEST(MixtureOfExpertsTest, TrainedParametersAreThoseOfTheDenseComputation) {
  expect_property(60, [] { expect_equals_dense(any_run(), 4); });
}

TEST(MixtureOfExpertsTest, InitialParametersArePartsOfThoseOfOneRank) {
  const MixtureRun run{.ep = 2, .options = {.width = 3, .inner = 4, .num_experts = 4, .bias = true}};
  const auto parts = [](const std::string& /*name*/, const at::Tensor& own) { return own; };
  const auto expected = completed(make_mixture(run, DeviceMesh()), parts);
  EXPECT_EQ(expected.size(), 7U);
  run_ranks(Backend::kSim, run.num_ranks(), [&](RankContext& rank) {
    const auto mixture = make_mixture(run, DeviceMesh(rank, run.layout()));
    EXPECT_EQ(parameter_cuts(*mixture).size(), 6U);
    const auto found = completed(mixture, parts);
    for (const auto& [name, parameter] : expected) EXPECT_TRUE(at::equal(found.at(name), parameter)) << name;
  });
}

// Ranks of "tp" hold equal experts and pass equal tokens.
TEST(MixtureOfExpertsTest, TensorParallelRanksHaveEqualGradients) {
  MixtureRun run{.ep = 2, .tp = 2, .tokens = {5, 3}, .options = {.width = 4, .inner = 3, .num_experts = 4}, .seed = 2};
  run.options.aux_loss_weight = 0.5;
  const auto all = reals({run.num_tokens(), run.options.width}, 1);
  run_ranks(Backend::kSim, run.num_ranks(), [&](RankContext& rank) {
    const DeviceMesh mesh(rank, run.layout());
    auto mixture = make_mixture(run, mesh);
    const auto output = outputs_of(mixture, own_rows(run, all, mesh));
    (output.values.square().sum() + output.auxiliary_loss).backward();
    for (const auto& item : mixture->named_parameters()) {
      const auto gradients = mesh["tp"].all_gather(item.value().grad().unsqueeze(0));
      EXPECT_TRUE(at::equal(gradients[0], gradients[1])) << item.key();
    }
  });
  expect_property(1, [&] { expect_equals_dense(run, 3); });
}

class Recomputing : public ModuleHooks {
 public:
  void before_forward() override {}
  void after_forward(std::vector<at::Tensor>& /*outputs*/) override {}
  [[nodiscard]] bool recomputes() const override { return true; }
};

TEST(MixtureOfExpertsTest, RecomputationChangesNoBit) {
  MixtureRun run{.ep = 2, .tokens = {4, 0}, .options = {.width = 3, .inner = 4, .num_experts = 4}};
  run.options.aux_loss_weight = 0.5;
  const auto all = reals({run.num_tokens(), run.options.width}, 1);
  run_ranks(Backend::kSim, run.num_ranks(), [&](RankContext& rank) {
    const DeviceMesh mesh(rank, run.layout());
    const auto gradients = [&](bool recomputes) {
      auto mixture = make_mixture(run, mesh);
      std::optional<ScopedModuleHooks> hooks;
      if (recomputes) hooks.emplace(*mixture, std::make_shared<Recomputing>());
      const auto output = call(mixture, own_rows(run, all, mesh).requires_grad_());
      (output.values.square().sum() + output.auxiliary_loss).backward();
      return completed(mixture, [](const std::string& /*name*/, const at::Tensor& own) { return own.grad(); });
    };
    const auto kept = gradients(false), recomputed = gradients(true);
    for (const auto& [name, gradient] : kept) EXPECT_TRUE(at::equal(recomputed.at(name), gradient)) << name;
  });
}

// Ranks of "tp" that hold parts of the sequence compute what one rank computes, and equal gradients.
TEST(MixtureOfExpertsTest, SequenceParallelRegionsEqualOneRank) {
  MixtureRun run{.options = {.width = 3, .inner = 4, .num_experts = 4}};
  run.options.aux_loss_weight = 0.5;
  const auto values = reals({2, 8, 3}, 1);
  auto complete = make_mixture(run, DeviceMesh());
  auto whole = values.clone().requires_grad_();
  const auto expected = complete->forward(whole);
  (expected.values.square().sum() + expected.auxiliary_loss).backward();
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    for (const int tp : {2, 4}) {
      run.tp = tp;
      run_ranks(backend, tp, [&](RankContext& rank) {
        const DeviceMesh mesh(rank, run.layout());
        auto mixture = make_mixture(run, mesh);
        auto own = own_part(values, 1, mesh["tp"]).requires_grad_();
        const auto [parts, auxiliary_loss] = mixture->forward(Sharded<1>{own});
        EXPECT_TRUE(at::allclose(parts.local, own_part(expected.values, 1, mesh["tp"]), 1e-12, 1e-12));
        (gather(parts, mesh["tp"]).local.square().sum() + auxiliary_loss).backward();
        EXPECT_TRUE(at::allclose(own.grad(), own_part(whole.grad(), 1, mesh["tp"]), 1e-12, 1e-12));
        for (const auto& item : mixture->named_parameters()) {
          const auto& gradient = complete->named_parameters()[item.key()].grad();
          EXPECT_TRUE(at::allclose(item.value().grad(), gradient, 1e-12, 1e-12)) << item.key();
        }
      });
    }
  }
}

// Which tokens a rank has does not follow from a tensor's sizes.
TEST(MixtureOfExpertsTest, ATensorWithoutAPlacementIsAnErrorOnSeveralTensorParallelRanks) {
  const MixtureRun run{.tp = 2, .options = {.width = 3, .inner = 4, .num_experts = 4}};
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    auto mixture = make_mixture(run, DeviceMesh(rank, run.layout()));
    const auto values = reals({2, 3}, 1);
    EXPECT_THAT(message_of<ArgumentError>([&] { mixture->forward(values); }),
                HasSubstr("got a tensor on 2 tensor-parallel ranks; pass Replicated{values}"));
    EXPECT_EQ(mixture->forward(Replicated{values}).values.local.sizes(), values.sizes());
  });
}

TEST(MixtureOfExpertsTest, AnyNumberOfLeadingDimensionsIsAccepted) {
  const MixtureRun run{.options = {.width = 3, .inner = 4, .num_experts = 4}};
  auto mixture = make_mixture(run, DeviceMesh());
  const auto values = reals({2, 5, 3}, 1);
  EXPECT_TRUE(at::equal(mixture->forward(values).values.view({10, 3}), mixture->forward(values.view({10, 3})).values));
  EXPECT_EQ(mixture->forward(values[0][0]).values.sizes(), (std::vector<std::int64_t>{3}));
  EXPECT_THAT(message_of<ArgumentError>([&] {
                mixture->forward(reals({3, 2}, 1));
              }),
              HasSubstr("got values of sizes [3, 2]; expected (..., 3)"));
}

TEST(MixtureOfExpertsTest, ProblemsOfTheOptionsAreOneErrorBeforeAnyCollective) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const DeviceMesh mesh(rank, {.ep_size = 2});
    const auto message = [&](const MixtureOfExpertsOptions& options) {
      return message_of<ConfigError>([&] { MixtureOfExperts(options, mesh); });
    };
    const auto several = message({.width = 0, .inner = 4, .num_experts = 3, .top_k = 4, .capacity_factor = 0});
    EXPECT_THAT(several, HasSubstr("width: expected 1 or more, got 0; num_experts: 3 do not divide over 2 ranks"));
    EXPECT_THAT(several, HasSubstr("top_k: expected 1 to num_experts, got 4; capacity_factor: expected more than 0"));
    EXPECT_THAT(message({.width = 1, .inner = 1, .num_experts = 2, .top_k = 1, .normalize_gates = true}),
                HasSubstr("normalize_gates: with top_k 1 every gate would be 1"));
  });
}

}  // namespace
}  // namespace accel::testing
