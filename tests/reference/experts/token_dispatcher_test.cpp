// Experts on several ranks compute what one rank computes with all tokens and all experts. On dyadic values every sum
// is exact, so outputs, input gradients and weight gradients are equal in every bit.
#include "reference/experts/token_dispatcher.hpp"

#include <gmock/gmock.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "reference/core/errors.hpp"
#include "reference/experts/experts.hpp"
#include "reference/state/device_mesh.hpp"
#include "reference/state/rank_context.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::HasSubstr;

struct MixtureCase {
  int ep = 1, replicas = 1;
  std::vector<std::int64_t> tokens = {};  // of each rank; may be 0
  std::int64_t num_experts = 1, top_k = 1, width = 1, inner = 1;
  std::int64_t num_chosen = 1;  // experts that any token chooses, from index 0; others receive no row
  bool bias = false;
  std::uint64_t seed = 0;

  [[nodiscard]] int num_ranks() const { return ep * replicas; }
};

// The values of all tokens, in the order of the ranks.
struct Tokens {
  at::Tensor values, choices, gates, factors;
  [[nodiscard]] Tokens part(std::int64_t begin, std::int64_t length) const {
    const auto of = [&](const at::Tensor& all) { return all.narrow(0, begin, length).clone(); };
    return {of(values), of(choices), of(gates), of(factors)};
  }
};

using Draw = std::function<at::Tensor(const std::vector<std::int64_t>&, at::Generator)>;

at::Tensor dyadic_numbers(const std::vector<std::int64_t>& sizes, at::Generator generator) {
  return dyadic(sizes, std::move(generator));
}
at::Tensor real_numbers(const std::vector<std::int64_t>& sizes, at::Generator generator) {
  return at::randn(sizes, std::move(generator), at::TensorOptions(at::kDouble));
}

Tokens draw_tokens(const MixtureCase& sizes, const Draw& draw) {
  const auto count = std::accumulate(sizes.tokens.begin(), sizes.tokens.end(), std::int64_t{0});
  auto generator = make_generator(sizes.seed);
  const auto order = at::rand({count, sizes.num_chosen}, generator);
  return {.values = draw({count, sizes.width}, generator),
          .choices = at::argsort(order).narrow(-1, 0, sizes.top_k).contiguous(),
          .gates = draw({count, sizes.top_k}, generator),
          .factors = draw({count, sizes.width}, generator)};
}

void fill(ExpertsImpl& experts, const MixtureCase& sizes, const Draw& draw) {
  const c10::NoGradGuard no_grad;
  auto generator = make_generator(sizes.seed + 1);
  experts.to(at::kDouble);
  const auto cuts = experts.cuts();
  for (const auto& item : experts.named_parameters()) {
    auto complete = item.value().sizes().vec();
    complete[0] = sizes.num_experts;
    const auto whole = draw(complete, generator);
    const auto cut = cuts.find(item.key());
    item.value().copy_(cut == cuts.end() ? whole : cut->second.part_of(whole));
  }
}

struct Result {
  at::Tensor output, value_gradient, gate_gradient;
  std::map<std::string, at::Tensor> gradients;  // complete, and averaged as DDP does
};

// `factor` multiplies the loss: the number of ranks, so that means over ranks are sums.
Result trained(const MixtureCase& sizes, const Tokens& tokens, const DeviceMesh& mesh, int factor, const Draw& draw) {
  const auto& group = mesh["ep"];
  Experts experts(ExpertsOptions{.width = sizes.width,
                                 .inner = sizes.inner,
                                 .num_experts = sizes.num_experts,
                                 .activation = ExpertActivation::kRelu,
                                 .bias = sizes.bias},
                  group);
  fill(*experts, sizes, draw);
  const auto values = tokens.values.clone().requires_grad_(), gates = tokens.gates.clone().requires_grad_();
  const TokenDispatcher dispatcher(tokens.choices, {.num_experts = sizes.num_experts, .top_k = sizes.top_k}, group);
  const auto results = experts->forward(dispatcher.dispatch(values), dispatcher.rows_per_expert());
  const auto output = dispatcher.combine(results, gates);
  ((output * output * tokens.factors).sum() * factor).backward();
  Result result{output.detach(), values.grad(), gates.grad(), {}};
  const auto cuts = experts->cuts();
  for (const auto& item : experts->named_parameters()) {
    auto gradient = item.value().grad().clone();
    mesh["expert_dp"].all_reduce(gradient, ReduceOp::kMean).wait();
    const auto cut = cuts.find(item.key());
    result.gradients[item.key()] = cut == cuts.end() ? gradient : cut->second.whole_of(gradient);
  }
  return result;
}

std::vector<Result> trained_on_ranks(const MixtureCase& sizes, const Draw& draw, Backend backend) {
  const auto all = draw_tokens(sizes, draw);
  return collect_ranks(backend, sizes.num_ranks(), [&](RankContext& rank) {
    const DeviceMesh mesh(rank, {.dp_replicate_size = sizes.replicas, .ep_size = sizes.ep});
    const auto begin = std::accumulate(sizes.tokens.begin(), sizes.tokens.begin() + rank.rank, std::int64_t{0});
    const auto own = all.part(begin, sizes.tokens[static_cast<std::size_t>(rank.rank)]);
    return trained(sizes, own, mesh, sizes.num_ranks(), draw);
  });
}

Result trained_on_one_rank(const MixtureCase& sizes, const Draw& draw) {
  return trained(sizes, draw_tokens(sizes, draw), DeviceMesh(), 1, draw);
}

MixtureCase any_case() {
  MixtureCase sizes{.ep = pick(1, 5), .replicas = pick(1, 3)};
  for (int rank = 0; rank < sizes.num_ranks(); ++rank) sizes.tokens.push_back(one_in(4) ? 0 : pick<std::int64_t>(0, 6));
  sizes.num_experts = sizes.ep * pick<std::int64_t>(1, 4);
  sizes.num_chosen = one_in(3) ? 1 : pick<std::int64_t>(1, sizes.num_experts + 1);
  sizes.top_k = pick<std::int64_t>(1, std::min<std::int64_t>(4, sizes.num_chosen + 1));
  sizes.width = pick<std::int64_t>(1, 5);
  sizes.inner = pick<std::int64_t>(1, 5);
  sizes.bias = one_in(2);
  sizes.seed = pick<std::uint64_t>(0, 1000);
  return sizes;
}

void expect_equals_one_rank(const MixtureCase& sizes, Backend backend) {
  const auto expected = trained_on_one_rank(sizes, dyadic_numbers);
  const auto found = trained_on_ranks(sizes, dyadic_numbers, backend);
  std::int64_t begin = 0;
  for (std::size_t rank = 0; rank < found.size(); ++rank) {
    const auto of_rank = [&](const at::Tensor& all) { return all.narrow(0, begin, sizes.tokens[rank]); };
    RC_ASSERT(at::equal(found[rank].output, of_rank(expected.output)));
    RC_ASSERT(at::equal(found[rank].value_gradient, of_rank(expected.value_gradient) * sizes.num_ranks()));
    RC_ASSERT(at::equal(found[rank].gate_gradient, of_rank(expected.gate_gradient) * sizes.num_ranks()));
    for (const auto& [name, gradient] : expected.gradients) {
      RC_LOG(name);
      RC_ASSERT(at::equal(found[rank].gradients.at(name), gradient));
    }
    begin += sizes.tokens[rank];
  }
}

void expect_equal_results(const Result& a, const Result& b) {
  RC_ASSERT(at::equal(a.output, b.output));
  RC_ASSERT(at::equal(a.value_gradient, b.value_gradient));
  RC_ASSERT(at::equal(a.gate_gradient, b.gate_gradient));
  for (const auto& [name, gradient] : a.gradients) RC_ASSERT(at::equal(b.gradients.at(name), gradient));
}

TEST(TokenDispatcherTest, ValuesAndGradientsEqualThoseOfOneRank) {
  expect_property(200, [] { expect_equals_one_rank(any_case(), Backend::kSim); });
}

TEST(TokenDispatcherTest, GlooComputesTheSame) {
  expect_property(8, [] { expect_equals_one_rank(any_case(), Backend::kGlooThreads); });
}

// Real numbers, so that another order of the additions shows.
TEST(TokenDispatcherTest, SimulatedRanksAndGlooAgreeInEveryBit) {
  expect_property(8, [] {
    const auto sizes = any_case();
    const auto simulated = trained_on_ranks(sizes, real_numbers, Backend::kSim);
    const auto real = trained_on_ranks(sizes, real_numbers, Backend::kGlooThreads);
    for (std::size_t rank = 0; rank < real.size(); ++rank) expect_equal_results(simulated[rank], real[rank]);
  });
}

// Experts read rows by source rank and then by token, which is the order of one rank with all tokens. The same product
// is then computed, so even real numbers are equal. The numbers of ranks are powers of two, by which division is exact.
TEST(TokenDispatcherTest, WithOneReplicaRealNumbersEqualThoseOfOneRank) {
  expect_property(40, [] {
    auto sizes = any_case();
    sizes.replicas = 1;
    sizes.ep = pick_from({2, 4});
    sizes.tokens.resize(static_cast<std::size_t>(sizes.ep), 2);
    sizes.num_experts = sizes.ep * 2;
    sizes.num_chosen = std::min(sizes.num_chosen, sizes.num_experts);
    sizes.top_k = std::min(sizes.top_k, sizes.num_chosen);
    const auto expected = trained_on_one_rank(sizes, real_numbers);
    const auto found = trained_on_ranks(sizes, real_numbers, Backend::kSim);
    std::vector<at::Tensor> outputs, value_gradients;
    for (const auto& result : found) {
      outputs.push_back(result.output);
      value_gradients.push_back(result.value_gradient);
      for (const auto& [name, gradient] : expected.gradients) RC_ASSERT(at::equal(result.gradients.at(name), gradient));
    }
    RC_ASSERT(at::equal(at::cat(outputs), expected.output));
    RC_ASSERT(at::equal(at::cat(value_gradients), expected.value_gradient * sizes.ep));
  });
}

TEST(TokenDispatcherTest, ExpertsWithoutRowsHaveGradientsOfZeros) {
  const MixtureCase sizes{.ep = 2, .tokens = {3, 0}, .num_experts = 4, .width = 3, .inner = 2, .bias = true};
  for (const auto& result : trained_on_ranks(sizes, dyadic_numbers, Backend::kSim)) {
    EXPECT_EQ(result.gradients.size(), 4U);
    for (const auto& [name, gradient] : result.gradients) {
      ASSERT_TRUE(gradient.defined()) << name;
      EXPECT_TRUE(gradient.narrow(0, 1, 3).eq(0).all().item<bool>()) << name;
    }
  }
}

TEST(TokenDispatcherTest, ARankWhoseValuesNeedNoGradientRunsTheCollectivesOfBackward) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    Experts experts(ExpertsOptions{.width = 2, .inner = 2, .num_experts = 2}, rank.world);
    const auto tokens = rank.rank == 0 ? 3 : 0;
    const auto values = at::ones({tokens, 2}).requires_grad_(rank.rank == 0);
    const TokenDispatcher dispatcher(at::ones({tokens, 1}, at::kLong), {.num_experts = 2, .top_k = 1}, rank.world);
    const auto results = experts->forward(dispatcher.dispatch(values), dispatcher.rows_per_expert());
    dispatcher.combine(results, at::ones({tokens, 1})).sum().backward();
    EXPECT_EQ(values.grad().defined(), rank.rank == 0);
  });
}

// Each rank drops its own tokens: the rows that experts receive are those of the plan.
TEST(TokenDispatcherTest, DroppedChoicesAreThoseOfThePlan) {
  expect_property(40, [] {
    auto sizes = any_case();
    const auto all = draw_tokens(sizes, dyadic_numbers);
    const DispatchOptions options{
        .num_experts = sizes.num_experts, .top_k = sizes.top_k, .capacity_factor = pick(1, 7) / 4.0};
    run_ranks(Backend::kSim, sizes.num_ranks(), [&](RankContext& rank) {
      const DeviceMesh mesh(rank, {.dp_replicate_size = sizes.replicas, .ep_size = sizes.ep});
      const auto begin = std::accumulate(sizes.tokens.begin(), sizes.tokens.begin() + rank.rank, std::int64_t{0});
      const auto own = all.part(begin, sizes.tokens[static_cast<std::size_t>(rank.rank)]);
      const TokenDispatcher dispatcher(own.choices, options, mesh["ep"]);
      const auto gates = own.gates.clone().requires_grad_();
      // Experts that return their input: a token's output is its value times the gates that are kept.
      const auto output = dispatcher.combine(dispatcher.dispatch(own.values), gates);
      const auto* numbers = own.choices.const_data_ptr<std::int64_t>();
      const auto plan = plan_dispatch({numbers, numbers + own.choices.numel()}, options);
      auto kept = at::zeros({own.choices.numel()}, at::kDouble);
      for (const auto choice : plan.choices) kept[choice] = 1;
      kept = kept.view(own.choices.sizes());
      RC_ASSERT(at::equal(output, own.values * (gates * kept).sum(1, true)));
      output.sum().backward();
      RC_ASSERT(at::equal(gates.grad(), kept * own.values.sum(1, true)));
    });
  });
}

TEST(TokenDispatcherTest, ArgumentsThatDoNotFitAreErrors) {
  const auto message = [](const at::Tensor& choices) {
    return message_of<ArgumentError>([&] { TokenDispatcher(choices, {.num_experts = 2, .top_k = 2}, Group()); });
  };
  EXPECT_THAT(message(at::zeros({3, 1}, at::kLong)),
              HasSubstr("got choices of sizes [3, 1] and type Long; expected (tokens, 2)"));
  EXPECT_THAT(message(at::zeros({3, 2}, at::kInt)), HasSubstr("expected (tokens, 2) and int64"));
  const TokenDispatcher dispatcher(at::zeros({3, 2}, at::kLong), {.num_experts = 2, .top_k = 2}, Group());
  EXPECT_THAT(message_of<ArgumentError>([&] {
                (void)dispatcher.dispatch(at::zeros({2, 4}));
              }),
              HasSubstr("got values of sizes [2, 4]; expected (3, width)"));
}

}  // namespace
}  // namespace accel::testing
