// A small language model on divided samples and sequences: after the average that DistributedDataParallel computes, its
// gradients are those of one rank's mean over all tokens.
#include "reference/context_parallel/token_mean.hpp"

#include <gmock/gmock.h>

#include <cmath>

#include "reference/context_parallel/context_attention.hpp"
#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/device_mesh.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::HasSubstr;
using Attention = decltype(&ring_attention);

enum class Fault { kNone, kMeanOfMeans, kUnscaled, kLabelsShiftedAfterTheCut, kPositionsOfThePart };

struct Case {
  int data_ranks = 1, context_ranks = 1;
  SequenceOrder order = SequenceOrder::kZigzag;
  Attention attention = ring_attention;
  std::int64_t heads = 1, length = 1;
  std::uint64_t seed = 0;
};

Case any_case() {
  Case sizes{.data_ranks = pick(1, 4),
             .context_ranks = pick(1, 4),
             .order = pick_from({SequenceOrder::kZigzag, SequenceOrder::kContiguous}),
             .attention = pick_from<Attention>({ring_attention, all_gather_attention, ulysses_attention}),
             .seed = pick<std::uint64_t>(0, 1000)};
  sizes.heads = 2 * sizes.context_ranks;
  sizes.length = 2 * sizes.context_ranks * pick<std::int64_t>(1, 4);
  return sizes;
}

constexpr std::int64_t kVocab = 7, kWidth = 3;

struct Parameters {
  at::Tensor tokens, positions, mixing, output;
  [[nodiscard]] std::vector<at::Tensor> all() const { return {tokens, positions, mixing, output}; }
};

Parameters drawn(const Case& sizes) {
  auto generator = make_generator(sizes.seed);
  const auto normal = [&](std::int64_t rows, std::int64_t columns) {
    return at::randn({rows, columns}, generator, at::TensorOptions(at::kDouble)).requires_grad_();
  };
  const auto width = sizes.heads * kWidth;
  return {normal(kVocab, width), normal(sizes.length, width), normal(width, 3 * width), normal(width, kVocab)};
}

// Labels of one sample, of which those of its prompt are not counted: a different number in each.
at::Tensor with_prompt(const at::Tensor& labels, std::int64_t prompt) {
  return labels.masked_fill(at::arange(labels.size(-1)).lt(prompt), -100);
}

struct Batch {
  at::Tensor tokens, labels, positions;  // (1, local length), and (local length)
};

at::Tensor loss_sum_of(const Parameters& parameters, const Case& sizes, const Batch& batch, const SequencePlan& plan,
                       const Group& group) {
  const auto hidden =
      parameters.tokens.index_select(0, batch.tokens.view(-1)) + parameters.positions.index_select(0, batch.positions);
  std::vector<at::Tensor> heads;
  for (const auto& part : hidden.mm(parameters.mixing).chunk(3, 1))
    heads.push_back(part.view({1, -1, sizes.heads, kWidth}).transpose(1, 2));
  const auto seen = sizes.attention(heads[0], heads[1], heads[2], plan, group, {.is_causal = true});
  const auto logits = seen.transpose(1, 2).flatten(2).view({-1, sizes.heads * kWidth}).mm(parameters.output);
  return at::cross_entropy_loss(logits, batch.labels.view(-1), {}, at::Reduction::Sum);
}

struct Sample {
  at::Tensor tokens, labels;
};

std::vector<Sample> samples_of(const Case& sizes) {
  auto generator = make_generator(sizes.seed + 1);
  std::vector<Sample> samples;
  for (int sample = 0; sample < sizes.data_ranks; ++sample) {
    const auto tokens = at::randint(0, kVocab, {1, sizes.length}, generator, at::kLong);
    const auto prompt = at::randint(0, sizes.length - 1, {}, generator, at::kLong).item<std::int64_t>();
    samples.push_back({tokens, with_prompt(shift_labels(tokens), prompt)});
  }
  return samples;
}

struct Outcome {
  at::Tensor loss;
  std::vector<at::Tensor> gradients = {};
};

std::vector<at::Tensor> gradients_of(const Parameters& parameters) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters.all()) gradients.push_back(parameter.grad());
  return gradients;
}

Outcome on_one_rank(const Case& sizes) {
  const auto parameters = drawn(sizes);
  const SequencePlan plan({.length = sizes.length});
  auto loss = at::zeros({}, at::kDouble), count = at::zeros({}, at::kLong);
  for (const auto& sample : samples_of(sizes)) {
    const Batch batch{sample.tokens, sample.labels, position_ids(plan, 0)};
    loss = loss + loss_sum_of(parameters, sizes, batch, plan, Group());
    count += sample.labels.ne(-100).sum();
  }
  loss = loss / count;
  loss.backward();
  return {loss.detach(), gradients_of(parameters)};
}

Batch own_batch(const Case& sizes, const Sample& sample, const SequencePlan& plan, int rank, Fault fault) {
  Batch batch{shard_sequence(sample.tokens, 1, plan, rank), shard_sequence(sample.labels, 1, plan, rank),
              position_ids(plan, rank)};
  if (fault == Fault::kLabelsShiftedAfterTheCut)
    batch.labels = shift_labels(batch.tokens).masked_fill(batch.labels.eq(-100), -100);
  if (fault == Fault::kPositionsOfThePart) batch.positions = at::arange(sizes.length / sizes.context_ranks);
  return batch;
}

Outcome on_ranks(const Case& sizes, RankContext& rank, Fault fault) {
  const DeviceMesh mesh(rank, {.dp_replicate_size = sizes.data_ranks, .cp_size = sizes.context_ranks});
  const auto& ranks = mesh["dp_cp"];
  const SequencePlan plan({.length = sizes.length, .num_ranks = sizes.context_ranks, .order = sizes.order});
  const auto sample = samples_of(sizes).at(static_cast<std::size_t>(rank.rank / sizes.context_ranks));
  const auto batch = own_batch(sizes, sample, plan, mesh["cp"].rank(), fault);
  const auto parameters = drawn(sizes);
  const auto sum = loss_sum_of(parameters, sizes, batch, plan, mesh["cp"]);
  const auto count = batch.labels.ne(-100).sum();
  auto loss = token_mean(sum, count, ranks);
  if (fault == Fault::kMeanOfMeans) loss = sum / count.clamp_min(1);
  if (fault == Fault::kUnscaled) loss = loss / ranks.size();
  loss.backward();
  Outcome outcome{loss.detach().clone(), gradients_of(parameters)};
  ranks.all_reduce(outcome.loss, ReduceOp::kMean).wait();
  for (auto& gradient : outcome.gradients) ranks.all_reduce(gradient, ReduceOp::kMean).wait();
  return outcome;
}

// Elements are sums of products, which may cancel.
bool is_near(const at::Tensor& found, const at::Tensor& expected) {
  return (found - expected).abs().max().item<double>() <= 1e-12 * expected.abs().max().clamp_min(1).item<double>();
}

void expect_one_ranks_mean(const Case& sizes, Fault fault, Backend backend) {
  const auto expected = on_one_rank(sizes);
  const auto outcomes = collect_ranks(backend, sizes.data_ranks * sizes.context_ranks,
                                      [&](RankContext& rank) { return on_ranks(sizes, rank, fault); });
  for (const auto& outcome : outcomes) {
    RC_ASSERT(is_near(outcome.loss, expected.loss));
    for (std::size_t i = 0; i < expected.gradients.size(); ++i)
      RC_ASSERT(is_near(outcome.gradients[i], expected.gradients[i]));
  }
}

TEST(TokenMeanTest, AveragedGradientsAreThoseOfTheMeanOverAllTokens) {
  expect_property(60, [] { expect_one_ranks_mean(any_case(), Fault::kNone, Backend::kSim); });
}

TEST(TokenMeanTest, GlooComputesTheSame) {
  expect_property(4, [] { expect_one_ranks_mean(any_case(), Fault::kNone, Backend::kGlooThreads); });
}

TEST(TokenMeanTest, FaultsOfTheFieldAreFound) {
  const auto expect_found = [](const char* bug, Fault fault) {
    expect_property_fails(bug, 60, [&] { expect_one_ranks_mean(any_case(), fault, Backend::kSim); });
  };
  expect_found("mean of means", Fault::kMeanOfMeans);
  expect_found("loss that is not scaled by the number of ranks", Fault::kUnscaled);
  expect_found("labels shifted after the cut", Fault::kLabelsShiftedAfterTheCut);
  expect_found("positions within the part", Fault::kPositionsOfThePart);
}

TEST(TokenMeanTest, OneRankHasTheMeanOfCrossEntropy) {
  auto generator = make_generator(1);
  const auto logits = at::randn({6, kVocab}, generator, at::TensorOptions(at::kDouble));
  const auto labels = at::tensor({1, -100, 2, 3, -100, 6}, at::kLong);
  const auto sum = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
  EXPECT_TRUE(at::allclose(token_mean(sum, labels.ne(-100).sum(), Group()), at::cross_entropy_loss(logits, labels)));
  EXPECT_TRUE(std::isnan(token_mean(sum * 0, at::zeros({}, at::kLong), Group()).item<double>()));
}

TEST(TokenMeanTest, OtherShapesAndTypesAreErrors) {
  const auto count = at::ones({}, at::kLong);
  EXPECT_THAT(message_of<ArgumentError>([&] { token_mean(at::ones({3}), count, Group()); }),
              HasSubstr("loss_sum is Float of shape [3]"));
  EXPECT_THAT(message_of<ArgumentError>([&] { token_mean(at::ones({}), at::ones({}), Group()); }),
              HasSubstr("num_tokens is Float of shape []"));
}

}  // namespace
}  // namespace accel::testing
