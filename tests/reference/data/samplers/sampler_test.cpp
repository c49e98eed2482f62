// Samplers: every order and every draw must be Python's, because the default generator continues with the program's
// draws. Expected numbers were printed by torch 2.11 and Accelerate.
#include "reference/data/samplers/sampler.hpp"

#include <gmock/gmock.h>

#include "reference/core/errors.hpp"
#include "reference/rank_local/random.hpp"
#include "tests/support/torch.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

std::vector<std::int64_t> randperm(std::int64_t size, const at::Generator& generator) {
  const auto order = torch::randperm(size, generator, at::kLong);
  return {order.data_ptr<std::int64_t>(), order.data_ptr<std::int64_t>() + size};
}

// The full order of a pass, including what the sampler draws later.
std::vector<std::int64_t> order_of_pass(Sampler& sampler) {
  auto order = sampler.begin_pass();
  for (auto more = sampler.continue_pass(); !more.empty(); more = sampler.continue_pass())
    order.insert(order.end(), more.begin(), more.end());
  return order;
}

TEST(SequentialSamplerTest, SamplesAreVisitedInOrderInEveryPass) {
  SequentialSampler sampler(4);
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(0, 1, 2, 3));
}

// The comparison is with randperm itself, so the order equals PyTorch's.
TEST(RandomSamplerTest, APassIsAPermutationOfItsGenerator) {
  RandomSampler sampler(20, {.generator = make_generator(5)});
  EXPECT_EQ(sampler.begin_pass(), randperm(20, make_generator(5)));
}

// torch's RandomSampler yields `num_samples % n` indices of one more permutation at the end, and draws it even if
// that is zero.
TEST(RandomSamplerTest, TheEndOfAPassDrawsASecondPermutation) {
  const auto generator = make_generator(5), reference = make_generator(5);
  RandomSampler sampler(20, {.generator = generator});
  sampler.begin_pass();
  randperm(20, reference);
  EXPECT_TRUE(generator.get_state().equal(reference.get_state()));
  EXPECT_TRUE(sampler.continue_pass().empty());
  EXPECT_FALSE(generator.get_state().equal(reference.get_state()));
  randperm(20, reference);
  EXPECT_TRUE(generator.get_state().equal(reference.get_state()));
}

// Python draws one number as the seed of the pass, which matters for everything drawn afterwards.
TEST(RandomSamplerTest, WithoutAGeneratorAPassIsSeededByTheDefaultOne) {
  const auto reference = make_generator(9);
  const GeneratorScope scope(make_generator(9));
  RandomSampler sampler(20);
  for (int pass = 0; pass < 2; ++pass) {
    const auto seed = static_cast<std::uint64_t>(draw_int64(reference));
    EXPECT_EQ(order_of_pass(sampler), randperm(20, make_generator(seed)));
    EXPECT_TRUE(default_generator().get_state().equal(reference.get_state()));
  }
}

// Drawing for an empty data set would shift all later numbers.
TEST(RandomSamplerTest, NoSamplesDrawNoPermutation) {
  const auto generator = make_generator(5);
  RandomSampler sampler(0, {.generator = generator});
  EXPECT_TRUE(order_of_pass(sampler).empty());
  EXPECT_TRUE(generator.get_state().equal(make_generator(5).get_state()));
}

// The numbers are what torch 2.11 gives for a generator with seed 7. The next number below 1,000,000 shows that the
// generator has been advanced by the same draws.
std::int64_t next_number(const at::Generator& generator) {
  return torch::randint(0, 1000000, {1}, generator, at::kLong).item<std::int64_t>();
}

// Python draws in pieces of 32, so 35 samples cross a border.
TEST(RandomSamplerTest, DrawsWithReplacementEqualPythons) {
  const auto generator = make_generator(7);
  RandomSampler sampler(5, {.replacement = true, .num_samples = 35, .generator = generator});
  EXPECT_EQ(sampler.size(), 35);
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(0, 2, 1, 1, 3, 2, 2, 4, 3, 1, 3, 1, 3, 2, 2, 0, 1, 2, 3, 3, 1, 0, 0,
                                                  1, 3, 3, 3, 2, 0, 3, 1, 0, 1, 3, 0));
  EXPECT_EQ(next_number(generator), 293176);
}

// The last permutation is cut. The next number shows that exactly as much was drawn as in Python.
TEST(RandomSamplerTest, MoreSamplesThanTheDatasetAreFurtherPermutations) {
  const auto generator = make_generator(7);
  RandomSampler sampler(5, {.num_samples = 12, .generator = generator});
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(0, 1, 3, 2, 4, 3, 4, 1, 2, 0, 3, 2));
  EXPECT_EQ(next_number(generator), 296008);
}

TEST(RandomSamplerTest, SamplesFromAnEmptyDatasetAreAnArgumentError) {
  EXPECT_THROW(RandomSampler(0, {.num_samples = 3}), ArgumentError);
  EXPECT_THROW(RandomSampler(3, {.num_samples = -1}), ArgumentError);
}

// Expected values from Python with the same seeds.
TEST(SubsetRandomSamplerTest, ThePermutationEqualsPythons) {
  const auto generator = make_generator(7);
  SubsetRandomSampler sampler({10, 20, 30, 40, 50}, generator);
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(10, 20, 40, 30, 50));
  EXPECT_EQ(next_number(generator), 953283);
  const GeneratorScope scope(make_generator(7));
  SubsetRandomSampler without({10, 20, 30, 40, 50});
  EXPECT_THAT(order_of_pass(without), ElementsAre(10, 20, 40, 30, 50));
}

// Expected values from Python with the same seeds.
TEST(WeightedRandomSamplerTest, TheDrawsEqualPythons) {
  const std::vector<double> weights{0.1, 0.9, 0.4, 3.0};
  WeightedRandomSampler with(weights, {.num_samples = 6, .generator = make_generator(7)});
  EXPECT_THAT(order_of_pass(with), ElementsAre(2, 2, 3, 3, 3, 3));
  WeightedRandomSampler without(weights, {.num_samples = 3, .replacement = false, .generator = make_generator(7)});
  EXPECT_THAT(order_of_pass(without), ElementsAre(1, 3, 0));
}

TEST(WeightedRandomSamplerTest, InvalidWeightsAreArgumentErrors) {
  EXPECT_THROW(WeightedRandomSampler({1, -1}, {}), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler({0, 0}, {}), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler({1, 0}, {.num_samples = 2, .replacement = false}), ArgumentError);
  EXPECT_THROW(WeightedRandomSampler({1}, {.num_samples = 0}), ArgumentError);
}

// Expected values from Python, with and without shuffling, for lengths that do not divide by the ranks.
TEST(DistributedSamplerTest, ThePartsEqualPythons) {
  const auto part = [](std::int64_t length, bool drop_last, bool shuffle, int rank, std::int64_t epoch) {
    DistributedSampler sampler(
        length, {.num_replicas = 3, .rank = rank, .shuffle = shuffle, .seed = 4, .drop_last = drop_last});
    sampler.set_epoch(epoch);
    const auto order = order_of_pass(sampler);
    EXPECT_EQ(sampler.size(), static_cast<std::int64_t>(order.size()));
    return order;
  };
  EXPECT_THAT(part(7, false, true, 0, 0), ElementsAre(3, 4, 6));
  EXPECT_THAT(part(7, false, true, 1, 1), ElementsAre(0, 6, 1));
  EXPECT_THAT(part(7, false, true, 2, 1), ElementsAre(4, 5, 0));
  EXPECT_THAT(part(7, false, false, 2, 0), ElementsAre(2, 5, 1));
  EXPECT_THAT(part(7, true, true, 1, 1), ElementsAre(0, 6));
  EXPECT_THAT(part(2, false, true, 2, 1), ElementsAre(1));
  EXPECT_THAT(part(0, false, true, 0, 0), ElementsAre());
  EXPECT_THROW(DistributedSampler(7, {.num_replicas = 2, .rank = 2}), ArgumentError);
}

// Expected values from Accelerate: the epoch is added to the seed.
TEST(SeedableRandomSamplerTest, DrawsWithReplacementEqualAcceleratesForEachEpoch) {
  SeedableRandomSampler sampler(5, /*data_seed=*/3, {.replacement = true, .num_samples = 7});
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(1, 3, 2, 2, 0, 0, 0));
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(0, 4, 1, 3, 4, 1, 4));
}

// The permutations that Accelerate gave for data_seed 7.
TEST(SeedableRandomSamplerTest, TheOrderEqualsAcceleratesForEachEpoch) {
  SeedableRandomSampler sampler(8, /*data_seed=*/7);
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(3, 6, 5, 7, 2, 1, 4, 0));
}

// The epoch advances only at the end of a pass, so a loop that was left is repeated.
TEST(SeedableRandomSamplerTest, AnUnfinishedPassIsRepeated) {
  SeedableRandomSampler sampler(8, /*data_seed=*/7);
  sampler.begin_pass();
  EXPECT_THAT(sampler.begin_pass(), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

TEST(SeedableRandomSamplerTest, SetEpochDeterminesTheOrder) {
  SeedableRandomSampler sampler(8, /*data_seed=*/7);
  sampler.set_epoch(1);
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(3, 6, 5, 7, 2, 1, 4, 0));
  sampler.set_epoch(0);
  EXPECT_THAT(order_of_pass(sampler), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

// The sampler seeds its generator in every pass, so ranks with different histories agree.
TEST(SeedableRandomSamplerTest, EarlierDrawsDoNotMatter) {
  const auto generator = make_generator(1);
  draw_int64(generator);
  SeedableRandomSampler sampler(8, /*data_seed=*/7, {.generator = generator});
  EXPECT_THAT(sampler.begin_pass(), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

// The program may draw from the generator that it has given.
TEST(SeedableRandomSamplerTest, APassSeedsTheGivenGenerator) {
  const auto generator = make_generator(1);
  SeedableRandomSampler sampler(8, /*data_seed=*/7, {.generator = generator});
  sampler.set_epoch(2);
  sampler.begin_pass();
  EXPECT_EQ(generator.current_seed(), 9U);
}

TEST(SeedableRandomSamplerTest, TheDefaultSeedIsTheDefaultGenerators) {
  const GeneratorScope scope(make_generator(7));
  // A draw does not change initial_seed(), which the sampler uses.
  draw_int64(default_generator());
  SeedableRandomSampler sampler(8, /*data_seed=*/std::nullopt);
  EXPECT_THAT(sampler.begin_pass(), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

}  // namespace
}  // namespace accel
