// Tensor-parallel layers compute what one rank computes with the complete weights. On dyadic values every sum is exact,
// so outputs, input gradients and weight gradients are equal in every bit.
#include "reference/tensor_parallel/layers.hpp"

#include <gmock/gmock.h>

#include "reference/context_parallel/token_mean.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/device_mesh.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tensor_parallel/cut_random.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include "tests/support/cut_values.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

namespace nn = torch::nn;
using namespace accel::parallel;
using ::testing::AllOf;
using ::testing::HasSubstr;

struct BlockCase {
  int ranks = 1;
  std::int64_t batch = 1, length = 1, width = 1, inner = 1, vocab = 1;
  bool bias = true, is_sequence_parallel = false;
};

// Tokens -> embedding -> expansion -> ReLU -> projection -> scaled by a shared weight.
struct Block : nn::Module {
  Block(const BlockCase& sizes, Group group_of_ranks) : group(std::move(group_of_ranks)) {
    embedding = register_module(
        "embedding", VocabParallelEmbedding(nn::EmbeddingOptions(sizes.vocab, sizes.width).padding_idx(0), group));
    expansion = register_module(
        "expansion",
        ColumnParallelLinear(
            ParallelLinearOptions{
                .in = sizes.width, .out = 2 * sizes.inner, .bias = sizes.bias, .sections = {sizes.inner, sizes.inner}},
            group));
    projection = register_module(
        "projection",
        RowParallelLinear(ParallelLinearOptions{.in = sizes.inner, .out = sizes.width, .bias = sizes.bias}, group));
    scale = register_parameter("scale", at::ones({sizes.width}, at::kDouble));
    to(at::kDouble);
  }

  // Both return the complete output.
  at::Tensor forward(const at::Tensor& tokens) {
    return projection->forward(gated(copy(embedding->forward(tokens), group))).local * scale;
  }
  at::Tensor forward_in_sequence(const at::Tensor& tokens) {
    const auto values = embedding->forward(tokens, ToSequence());
    auto output = projection->forward(gated(gather_copied(values, group)), ToSequence());
    output.local = output.local * shared_parameter(scale, group);
    return gather(output, group).local;
  }

  Sharded<-1> gated(const Copied& values) {
    return elementwise(expansion->forward(values), [](const at::Tensor& both) {
      const auto parts = both.chunk(2, -1);
      return parts[0].relu() + parts[1];
    });
  }

  Group group;
  VocabParallelEmbedding embedding{nullptr};
  ColumnParallelLinear expansion{nullptr};
  RowParallelLinear projection{nullptr};
  at::Tensor scale;
};

// Draws complete values, of which each rank keeps its part.
void fill(Block& block, std::uint64_t seed) {
  auto generator = make_generator(seed);
  fill_with_parts(block,
                  [&](const std::string&, const std::vector<std::int64_t>& sizes) { return dyadic(sizes, generator); });
}

struct Result {
  at::Tensor output;
  std::map<std::string, at::Tensor> gradients;
};

Result trained(const BlockCase& sizes, const Group& group, std::uint64_t seed) {
  Block block(sizes, group);
  fill(block, seed);
  auto generator = make_generator(seed + 1);
  const auto tokens = at::randint(0, sizes.vocab, {sizes.batch, sizes.length}, generator, at::kLong);
  const auto factor = dyadic({sizes.batch, sizes.length, sizes.width}, generator, 2);
  const auto output = sizes.is_sequence_parallel ? block.forward_in_sequence(tokens) : block.forward(tokens);
  (output * output * factor).sum().backward();
  Result result{.output = output.detach(), .gradients = {}};
  const auto cuts = parameter_cuts(block);
  for (const auto& item : block.named_parameters()) {
    const auto cut = cuts.find(item.key());
    result.gradients[item.key()] = cut == cuts.end() ? item.value().grad() : cut->second.whole_of(item.value().grad());
  }
  return result;
}

BlockCase any_case() {
  BlockCase sizes{.ranks = pick(2, 5), .batch = pick<std::int64_t>(1, 4), .length = pick<std::int64_t>(1, 5)};
  sizes.width = pick<std::int64_t>(1, 6);
  sizes.inner = sizes.ranks * pick<std::int64_t>(1, 4);
  // Any vocabulary of which every rank has a row, as torch.chunk divides it.
  do {
    sizes.vocab = pick<std::int64_t>(1, 16);
  } while (part_of_length(sizes.vocab, {.index = sizes.ranks - 1, .num_parts = sizes.ranks}).size() == 0);
  sizes.bias = pick(0, 2) == 0;
  sizes.is_sequence_parallel = pick(0, 2) == 0;
  if (sizes.is_sequence_parallel) sizes.length *= sizes.ranks;
  return sizes;
}

void expect_equals_one_rank(const BlockCase& sizes, std::uint64_t seed, Backend backend) {
  const auto expected = trained(sizes, Group(), seed);
  for (const auto& found :
       collect_ranks(backend, sizes.ranks, [&](RankContext& rank) { return trained(sizes, rank.world, seed); })) {
    RC_ASSERT(at::equal(found.output, expected.output));
    for (const auto& [name, gradient] : expected.gradients) {
      RC_LOG(name);
      RC_ASSERT(at::equal(found.gradients.at(name), gradient));
    }
  }
}

TEST(TensorParallelLayersTest, ValuesAndGradientsEqualThoseOfOneRank) {
  expect_property(150, [] { expect_equals_one_rank(any_case(), pick<std::uint64_t>(0, 1000), Backend::kSim); });
}

TEST(TensorParallelLayersTest, GlooComputesTheSame) {
  expect_property(6, [] { expect_equals_one_rank(any_case(), pick<std::uint64_t>(0, 1000), Backend::kGlooThreads); });
}

TEST(TensorParallelLayersTest, InitialWeightsArePartsOfThoseOfOneRank) {
  const BlockCase sizes{.ranks = 2, .width = 3, .inner = 4, .vocab = 6};
  const auto drawn = [&](const Group& group) {
    const GeneratorScope scope(make_generator(3));
    return Block(sizes, group);
  };
  auto whole = drawn(Group());
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const auto block = drawn(rank.world);
    const auto cuts = parameter_cuts(block);
    EXPECT_EQ(cuts.size(), 4U);  // embedding, weight and bias of the expansion, weight of the projection
    for (const auto& [name, cut] : cuts)
      EXPECT_TRUE(at::equal(cut.whole_of(block.named_parameters()[name]), whole.named_parameters()[name])) << name;
  });
}

// The logits of a layer whose features need not divide.
Sharded<-1> part_of_logits(const at::Tensor& logits, const Group& group) {
  const auto vocab = logits.size(-1);
  const auto own = ParameterCut{.group = group, .dim = 1, .sections = {vocab}}.part_of(logits);
  return {own.requires_grad_(), vocab % group.size() == 0 ? 0 : vocab};
}

void expect_cross_entropy_of_all_logits(Backend backend, int ranks) {
  std::int64_t vocab = 0;
  do {
    vocab = pick<std::int64_t>(1, 20);
  } while (part_of_length(vocab, {.index = ranks - 1, .num_parts = ranks}).size() == 0);
  const auto rows = pick<std::int64_t>(1, 6);
  auto generator = make_generator(pick<std::uint64_t>(0, 1000));
  const auto logits = at::randn({rows, vocab}, generator, at::TensorOptions(at::kDouble)) * 3;
  auto targets = at::randint(0, vocab, {rows}, generator, at::kLong);
  const bool masks_all = one_in(4);
  if (masks_all) targets.fill_(-100);
  if (rows > 1 && one_in(2)) targets[0] = -100;
  for (const auto& [name, reduction] : {std::pair("mean", at::Reduction::Mean), std::pair("sum", at::Reduction::Sum),
                                        std::pair("none", at::Reduction::None)}) {
    if (masks_all && std::string(name) == "mean") continue;  // NaN
    auto whole = logits.clone().requires_grad_();
    const auto expected = at::cross_entropy_loss(whole, targets, {}, reduction);
    expected.sum().backward();
    run_ranks(backend, ranks, [&, name = name](RankContext& rank) {
      const auto own = part_of_logits(logits, rank.world);
      const auto loss = vocab_parallel_cross_entropy(own, targets, rank.world, {.reduction = name}).local;
      loss.sum().backward();
      RC_ASSERT(at::allclose(loss, expected, 1e-12, 1e-12));
      RC_ASSERT(at::allclose(own.local.grad(), part_of_logits(whole.grad(), rank.world).local, 1e-12, 1e-12));
      RC_ASSERT(at::equal(gather(own, rank.world).local, logits));
    });
  }
}

TEST(TensorParallelLayersTest, TheCrossEntropyEqualsThatOfAllLogits) {
  expect_property(60, [] { expect_cross_entropy_of_all_logits(Backend::kSim, pick(1, 5)); });
  expect_property(6, [] { expect_cross_entropy_of_all_logits(Backend::kGlooThreads, pick(1, 5)); });
}

// With the sum, ranks that count no token have a loss and a gradient of 0.
TEST(TensorParallelLayersTest, MeansOverTokensAreRightWhereARankCountsNone) {
  auto generator = make_generator(5);
  const auto logits = at::randn({8, 6}, generator, at::TensorOptions(at::kDouble));
  auto targets = at::randint(0, 6, {8}, generator, at::kLong);
  targets.narrow(0, 0, 4).fill_(-100);
  targets[5] = -100;
  auto whole = logits.clone().requires_grad_();
  const auto expected = at::cross_entropy_loss(whole, targets);
  expected.backward();
  for (const auto backend : {Backend::kSim, Backend::kGlooThreads}) {
    run_ranks(backend, 4, [&](RankContext& rank) {
      const DeviceMesh mesh(rank, {.dp_replicate_size = 2, .tp_size = 2});
      const auto place = mesh["dp"].rank();
      const auto own_targets = targets.chunk(2)[place];
      const auto own = part_of_logits(logits.chunk(2)[place].contiguous(), mesh["tp"]);
      const auto sum = vocab_parallel_cross_entropy(own, own_targets, mesh["tp"], {.reduction = "sum"}).local;
      const auto loss = token_mean(sum, own_targets.ne(-100).sum(), mesh["dp_cp"]);
      loss.backward();
      auto mean = loss.detach().clone();
      mesh["dp_cp"].all_reduce(mean, ReduceOp::kMean).wait();
      EXPECT_NEAR(mean.item<double>(), expected.item<double>(), 1e-12);
      const auto expected_part = part_of_logits(whole.grad().chunk(2)[place].contiguous() * 2, mesh["tp"]).local;
      EXPECT_TRUE(at::allclose(own.local.grad(), expected_part, 1e-12, 1e-12));
    });
  }
}

TEST(TensorParallelLayersTest, TargetsOutsideOfTheVocabularyAndLostSizesAreErrors) {
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const auto message = [&](const Sharded<-1>& logits, const at::Tensor& targets,
                             const VocabCrossEntropyOptions& options) {
      return message_of<ArgumentError>([&] { vocab_parallel_cross_entropy(logits, targets, rank.world, options); });
    };
    const auto even = part_of_logits(at::zeros({2, 4}), rank.world),
               uneven = part_of_logits(at::zeros({2, 5}), rank.world);
    EXPECT_THAT(message(even, at::full({2}, 4, at::kLong), {}), HasSubstr("targets from 4 to 4; expected 0 to 3"));
    EXPECT_THAT(message(even, at::zeros({2}, at::kLong), {.reduction = "total"}), HasSubstr("got 'total'"));
    EXPECT_THAT(message({uneven.local}, at::zeros({2}, at::kLong), {}), HasSubstr("set uneven_length of the logits"));
    EXPECT_THAT(message({even.local, 5}, at::zeros({2}, at::kLong), {}), HasSubstr("set uneven_length of the logits"));
  });
}

TEST(TensorParallelLayersTest, TheLossOfBfloat16LogitsIsComputedInFloat32) {
  auto generator = make_generator(5);
  const auto logits = at::randn({6, 8}, generator, at::TensorOptions()).to(at::kBFloat16);
  const auto targets = at::arange(6);
  const auto expected = at::cross_entropy_loss(logits.to(at::kFloat), targets);
  run_ranks(Backend::kSim, 2, [&](RankContext& rank) {
    const auto loss = vocab_parallel_cross_entropy({own_part(logits, -1, rank.world)}, targets, rank.world).local;
    EXPECT_EQ(loss.scalar_type(), at::kFloat);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 1e-6);  // bfloat16 would round it to 1/128
  });
}

TEST(TensorParallelLayersTest, RowParallelLayersComputeInFloat8) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    RowParallelLinear layer(ParallelLinearOptions{.in = 64, .out = 16}, rank.world);
    const auto layers = std::make_shared<Float8Layers>(
        *layer, AORecipeKwargs{.config = Float8LinearConfig{.emulate = true},
                               .module_filter_func = [](const auto&, const auto&) { return true; }});
    const auto input = at::randn({8, 32});
    const auto exact = layer->forward({input}).local;
    const Float8Scope scope(layers);
    const auto rounded = layer->forward({input}).local;
    layers->check_ran();
    EXPECT_FALSE(at::equal(rounded, exact));
    EXPECT_LT((rounded - exact).norm().item<double>(), 0.1 * exact.norm().item<double>());  // e4m3 has 3 bits
  });
}

TEST(TensorParallelLayersTest, SizesThatDoNotDivideAreErrorsBeforeAnyCollective) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const auto message = [&](ParallelLinearOptions options) {
      return message_of<ConfigError>([&] { ColumnParallelLinear(options, rank.world); });
    };
    EXPECT_THAT(message({.in = 2, .out = 1}), HasSubstr("leave the last rank without any"));
    EXPECT_THAT(message({.in = 2, .out = 4, .sections = {2, 4}}), HasSubstr("6 features in all; expected 4"));
    EXPECT_THAT(
        message({.in = 2, .out = 9, .sections = {3, 5}}),
        AllOf(HasSubstr("ColumnParallelLinear: 3 features do not divide"), HasSubstr("; 5 features do not divide"),
              HasSubstr("; the sections have 8 features in all; expected 9")));
  });
}

TEST(CutRandomTest, RanksDrawDifferentNumbersInsideAndEqualOnesOutside) {
  const auto draws = collect_ranks(Backend::kSim, 3, [](RankContext& rank) {
    at::Tensor inside;
    {
      const CutRandom random(rank.world);
      inside = at::rand({8});
    }
    return std::pair(inside, at::rand({8}));
  });
  EXPECT_FALSE(at::equal(draws[0].first, draws[1].first));
  EXPECT_FALSE(at::equal(draws[1].first, draws[2].first));
  EXPECT_TRUE(at::equal(draws[0].second, draws[1].second));
  EXPECT_TRUE(at::equal(draws[1].second, draws[2].second));
}

}  // namespace
}  // namespace accel::testing
