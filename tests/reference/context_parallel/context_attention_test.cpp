// Attention over a divided sequence is that of one rank, for outputs and the gradients of all inputs.
#include "reference/context_parallel/context_attention.hpp"

#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>

#include <functional>

#include "reference/context_parallel/shard_sequence.hpp"
#include "reference/core/errors.hpp"
#include "tests/support/fake_device/device.hpp"
#include "tests/support/message_of.hpp"
#include "tests/support/property.hpp"
#include "tests/support/run_ranks.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {
namespace {

using namespace accel::parallel;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Attention = decltype(&ring_attention);

struct AttentionCase {
  int ranks = 1;
  SequenceOrder order = SequenceOrder::kContiguous;
  std::int64_t batch = 1, key_heads = 1, heads_per_key_head = 1, length = 1, width = 1;
  at::ScalarType dtype = at::kDouble;
  bool has_key_mask = false;
  ContextAttentionOptions options = {};
};

AttentionCase any_case(std::int64_t chunk_max) {
  AttentionCase sizes{.ranks = pick(2, 7),
                      .order = pick_from({SequenceOrder::kContiguous, SequenceOrder::kZigzag}),
                      .batch = pick<std::int64_t>(1, 4),
                      .key_heads = pick<std::int64_t>(1, 4),
                      .heads_per_key_head = pick<std::int64_t>(1, 4)};
  sizes.length = 2 * sizes.ranks * pick<std::int64_t>(1, chunk_max);
  sizes.width = pick_from<std::int64_t>({1, 3, 4, 8, 16, 32});
  sizes.has_key_mask = one_in(4);
  sizes.options.is_causal = !one_in(4);
  sizes.options.enable_gqa = sizes.heads_per_key_head > 1;
  if (one_in(2)) sizes.options.scale = 0.3;
  return sizes;
}

struct Inputs {
  at::Tensor queries, keys, values, key_mask, output_gradient;
};

Inputs draw(const AttentionCase& sizes, std::uint64_t seed) {
  auto generator = make_generator(seed);
  const auto normal = [&](std::int64_t heads) {
    return at::randn({sizes.batch, heads, sizes.length, sizes.width}, generator, at::kDouble).to(sizes.dtype);
  };
  const auto heads = sizes.key_heads * sizes.heads_per_key_head;
  Inputs inputs{normal(heads), normal(sizes.key_heads), normal(sizes.key_heads), {}, normal(heads)};
  // With a third of the keys hidden, some causal queries see none.
  if (sizes.has_key_mask) inputs.key_mask = at::rand({sizes.batch, sizes.length}, generator, at::kDouble).gt(0.3);
  return inputs;
}

struct Results {
  at::Tensor output, queries, keys, values;
};

Results computed(const Inputs& inputs, const std::function<at::Tensor(const Inputs&)>& attention) {
  auto leaves = inputs;
  for (auto* leaf : {&leaves.queries, &leaves.keys, &leaves.values}) *leaf = leaf->detach().clone().requires_grad_();
  const auto output = attention(leaves);
  output.backward(inputs.output_gradient);
  return {output.detach(), leaves.queries.grad(), leaves.keys.grad(), leaves.values.grad()};
}

Results computed(Attention attention, const AttentionCase& sizes, const Inputs& inputs, const SequencePlan& plan,
                 const Group& group) {
  return computed(inputs, [&](const Inputs& leaves) {
    auto options = sizes.options;
    options.key_mask = leaves.key_mask;
    return attention(leaves.queries, leaves.keys, leaves.values, plan, group, options);
  });
}

Results on_one_rank(Attention attention, const AttentionCase& sizes, const Inputs& inputs) {
  return computed(attention, sizes, inputs, SequencePlan({.length = sizes.length}), Group());
}

Results by_libtorch(const AttentionCase& sizes, const Inputs& inputs) {
  return computed(inputs, [&](const Inputs& leaves) {
    auto mask = at::ones({sizes.length, sizes.length}, at::kBool);
    if (sizes.options.is_causal) mask = mask.tril();
    if (leaves.key_mask.defined()) mask = mask.logical_and(leaves.key_mask.unsqueeze(1).unsqueeze(1));
    return at::scaled_dot_product_attention(leaves.queries, leaves.keys, leaves.values, mask, 0.0, false,
                                            sizes.options.scale, sizes.options.enable_gqa);
  });
}

template <typename Tensors>
Tensors part_of(const Tensors& complete, const SequencePlan& plan, int rank) {
  auto part = complete;
  const auto cut = [&](at::Tensor& values) {
    if (values.defined()) values = shard_sequence(values, values.dim() == 2 ? 1 : 2, plan, rank);
  };
  if constexpr (requires { part.key_mask; }) {
    cut(part.key_mask);
    cut(part.output_gradient);
  } else {
    cut(part.output);
  }
  cut(part.queries);
  cut(part.keys);
  cut(part.values);
  return part;
}

std::vector<Results> on_ranks(Attention attention, const AttentionCase& sizes, const Inputs& inputs, Backend backend) {
  const SequencePlan plan({.length = sizes.length, .num_ranks = sizes.ranks, .order = sizes.order});
  return collect_ranks(backend, sizes.ranks, [&](RankContext& rank) {
    return computed(attention, sizes, part_of(inputs, plan, rank.rank), plan, rank.world);
  });
}

void expect_near(const Results& found, const Results& expected) {
  constexpr double bound = 1e-12;  // in float64; values are sums of at most some hundred products of normal numbers
  RC_ASSERT(at::allclose(found.output, expected.output, bound, bound));
  RC_ASSERT(at::allclose(found.queries, expected.queries, bound, bound));
  RC_ASSERT(at::allclose(found.keys, expected.keys, bound, bound));
  RC_ASSERT(at::allclose(found.values, expected.values, bound, bound));
}

void expect_same_bits(const Results& found, const Results& expected) {
  RC_ASSERT(at::equal(found.output, expected.output));
  RC_ASSERT(at::equal(found.queries, expected.queries));
  RC_ASSERT(at::equal(found.keys, expected.keys));
  RC_ASSERT(at::equal(found.values, expected.values));
}

using Comparison = void (*)(const Results& found, const Results& expected);

void expect_one_ranks_results(Attention attention, const AttentionCase& sizes, Comparison compare) {
  const auto inputs = draw(sizes, pick<std::uint64_t>(0, 1000));
  const auto expected = on_one_rank(attention, sizes, inputs);
  const SequencePlan plan({.length = sizes.length, .num_ranks = sizes.ranks, .order = sizes.order});
  const auto found = on_ranks(attention, sizes, inputs, Backend::kSim);
  for (int rank = 0; rank < sizes.ranks; ++rank)
    compare(found[static_cast<std::size_t>(rank)], part_of(expected, plan, rank));
}

void expect_libtorchs_results(Attention attention, AttentionCase sizes) {
  const auto inputs = draw(sizes, pick<std::uint64_t>(0, 1000));
  expect_near(on_one_rank(attention, sizes, inputs), by_libtorch(sizes, inputs));
}

AttentionCase for_ulysses(AttentionCase sizes) {
  sizes.key_heads *= sizes.ranks;
  return sizes;
}

// Of other widths, heads begin at addresses for which the kernels add in another order.
AttentionCase with_aligned_heads(AttentionCase sizes) {
  sizes.width = pick_from<std::int64_t>({4, 8, 12, 16, 32});
  return sizes;
}

AttentionCase of_any_dtype(AttentionCase sizes) {
  sizes.dtype = pick_from({at::kFloat, at::kDouble, at::kBFloat16});
  return sizes;
}

// The sums over queries that are gradients of keys and values have another order on several ranks.
void expect_rows_bits(const Results& found, const Results& expected) {
  RC_ASSERT(at::equal(found.output, expected.output));
  RC_ASSERT(at::equal(found.queries, expected.queries));
  const auto type = found.keys.scalar_type();
  const double bound = type == at::kDouble ? 1e-12 : type == at::kFloat ? 1e-4 : 6e-2;
  RC_ASSERT(at::allclose(found.keys, expected.keys, bound, bound));
  RC_ASSERT(at::allclose(found.values, expected.values, bound, bound));
}

TEST(AllGatherAttentionTest, RowsHaveTheBitsOfOneRank) {
  expect_property(60,
                  [] { expect_one_ranks_results(all_gather_attention, of_any_dtype(any_case(9)), expect_rows_bits); });
}

TEST(AllGatherAttentionTest, OneRankComputesLibTorchsAttention) {
  expect_property(30, [] { expect_libtorchs_results(all_gather_attention, any_case(9)); });
}

// Above 512 keys, blocks of hidden keys are left out.
TEST(AllGatherAttentionTest, LongSequencesHaveTheSameBitsAndLibTorchsResults) {
  expect_property(4, [] {
    auto sizes = any_case(2);
    sizes.length = 2 * sizes.ranks * (300 / sizes.ranks);
    sizes.batch = sizes.key_heads = 1;
    sizes.options.is_causal = true;
    expect_libtorchs_results(all_gather_attention, sizes);
    expect_one_ranks_results(all_gather_attention, of_any_dtype(sizes), expect_rows_bits);
  });
}

TEST(UlyssesAttentionTest, EverythingHasTheBitsOfOneRank) {
  expect_property(60, [] {
    expect_one_ranks_results(ulysses_attention, with_aligned_heads(of_any_dtype(for_ulysses(any_case(9)))),
                             expect_same_bits);
  });
}

TEST(UlyssesAttentionTest, HeadsOfAnyWidthAreThoseOfOneRankWithinRounding) {
  expect_property(30, [] { expect_one_ranks_results(ulysses_attention, for_ulysses(any_case(9)), expect_near); });
}

TEST(UlyssesAttentionTest, OneRankComputesLibTorchsAttention) {
  expect_property(30, [] { expect_libtorchs_results(ulysses_attention, any_case(9)); });
}

TEST(RingAttentionTest, EverythingIsThatOfOneRankWithinRounding) {
  expect_property(60, [] { expect_one_ranks_results(ring_attention, any_case(9), expect_near); });
}

TEST(RingAttentionTest, OneRankComputesLibTorchsAttention) {
  expect_property(30, [] { expect_libtorchs_results(ring_attention, any_case(9)); });
}

TEST(RingAttentionTest, LowPrecisionIsComputedInFloat32) {
  expect_property(20, [] {
    auto sizes = any_case(6);
    sizes.dtype = at::kBFloat16;
    const auto inputs = draw(sizes, pick<std::uint64_t>(0, 1000));
    auto in_float32 = inputs;
    for (auto* tensor : {&in_float32.queries, &in_float32.keys, &in_float32.values, &in_float32.output_gradient})
      *tensor = tensor->to(at::kFloat);
    const auto expected = on_ranks(ring_attention, sizes, in_float32, Backend::kSim);
    const auto found = on_ranks(ring_attention, sizes, inputs, Backend::kSim);
    for (std::size_t rank = 0; rank < found.size(); ++rank) {
      RC_ASSERT(at::equal(found[rank].output, expected[rank].output.to(at::kBFloat16)));
      RC_ASSERT(at::equal(found[rank].queries, expected[rank].queries.to(at::kBFloat16)));
      RC_ASSERT(at::equal(found[rank].keys, expected[rank].keys.to(at::kBFloat16)));
      RC_ASSERT(at::equal(found[rank].values, expected[rank].values.to(at::kBFloat16)));
    }
  });
}

// Autocast would round the products in each tile and in each step of the ring.
TEST(ContextAttentionTest, AutocastChangesNothing) {
  expect_property(10, [] {
    auto sizes = any_case(6);
    sizes.dtype = at::kBFloat16;
    const auto attention = pick_from<Attention>({all_gather_attention, ring_attention});
    const auto inputs = draw(sizes, pick<std::uint64_t>(0, 1000));
    const auto expected = on_one_rank(attention, sizes, inputs);
    at::autocast::set_autocast_enabled(at::kCPU, true);
    const auto found = on_one_rank(attention, sizes, inputs);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    expect_same_bits(found, expected);
  });
}

// Off the CPU, all-gather attention is one call without tiles.
TEST(ContextAttentionTest, OtherDevicesComputeTheSame) {
  expect_property(20, [] {
    const auto sizes = any_case(6);
    const auto attention = pick_from<Attention>({all_gather_attention, ring_attention, ulysses_attention});
    const auto inputs = draw(sizes, pick<std::uint64_t>(0, 1000));
    auto on_device = inputs;
    for (auto* tensor :
         {&on_device.queries, &on_device.keys, &on_device.values, &on_device.key_mask, &on_device.output_gradient})
      if (tensor->defined()) *tensor = tensor->to(fake_device::device(0));
    auto found = on_one_rank(attention, sizes, on_device);
    for (auto* tensor : {&found.output, &found.queries, &found.keys, &found.values}) *tensor = tensor->cpu();
    expect_near(found, on_one_rank(attention, sizes, inputs));
  });
}

TEST(ContextAttentionTest, GlooComputesTheBitsOfSimulatedRanks) {
  expect_property(12, [] {
    const auto sizes = of_any_dtype(for_ulysses(any_case(6)));
    const auto attention = pick_from<Attention>({all_gather_attention, ring_attention, ulysses_attention});
    const auto inputs = draw(sizes, pick<std::uint64_t>(0, 1000));
    const auto simulated = on_ranks(attention, sizes, inputs, Backend::kSim);
    const auto real = on_ranks(attention, sizes, inputs, Backend::kGlooThreads);
    for (std::size_t rank = 0; rank < real.size(); ++rank) expect_same_bits(real[rank], simulated[rank]);
  });
}

TEST(ContextAttentionTest, InputsThatDoNotFitAreErrorsBeforeAnyCollective) {
  run_ranks(Backend::kSim, 2, [](RankContext& rank) {
    const auto values = at::ones({1, 3, 4, 2});
    const auto message = [&](Attention attention, const at::Tensor& keys, std::int64_t length,
                             const ContextAttentionOptions& options = {}) {
      const SequencePlan plan({.length = length, .num_ranks = 2});
      return message_of<ArgumentError>([&] { attention(values, keys, keys, plan, rank.world, options); });
    };
    EXPECT_THAT(message(ulysses_attention, values, 8),
                HasSubstr("3 heads and 3 key-value heads do not divide over 2 ranks"));
    EXPECT_THAT(message(ring_attention, values, 6), HasSubstr("part has 4 positions; expected 3"));
    EXPECT_THAT(message(ring_attention, at::ones({1, 3, 2, 2}), 8), HasSubstr("keys [1, 3, 2, 2]"));
    EXPECT_THAT(message(ring_attention, at::ones({1, 1, 4, 2}), 8), HasSubstr("3 heads and 1 key-value heads"));
    EXPECT_THAT(message(ring_attention, at::ones({1, 2, 4, 2}), 8, {.enable_gqa = true}), HasSubstr("a multiple"));
    EXPECT_THAT(message(all_gather_attention, values.to(at::kDouble), 8), HasSubstr("queries are Float, keys Double"));
    EXPECT_THAT(message(all_gather_attention, values, 8, {.key_mask = at::ones({1, 8}, at::kBool)}),
                HasSubstr("bool of shape (1, 4)"));
    // All problems are in one error: the part, the types, the heads and a mask per query.
    EXPECT_THAT(message(ulysses_attention, at::ones({1, 2, 4, 2}, at::kDouble), 6, {.key_mask = at::ones({4, 4})}),
                AllOf(HasSubstr("part has 4 positions; expected 3"), HasSubstr("queries are Float, keys Double"),
                      HasSubstr("3 heads and 2 key-value heads; expected equal numbers"),
                      HasSubstr("do not divide over 2 ranks"), HasSubstr("the key mask is Float of shape [4, 4]")));
    EXPECT_THAT(message_of<ArgumentError>(
                    [&] { ring_attention(values, values, values, SequencePlan({.length = 4}), rank.world); }),
                HasSubstr("the plan is for 1 ranks, group world has 2"));
  });
}

}  // namespace
}  // namespace accel::testing
