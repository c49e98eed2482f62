#include "reference/data/sampler.hpp"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include "reference/core/random.hpp"

using testing::ElementsAre;

namespace accel {
namespace {

std::vector<std::int64_t> randperm(std::int64_t size, const at::Generator& generator) {
  const auto order = torch::randperm(size, generator, at::kLong);
  return {order.data_ptr<std::int64_t>(), order.data_ptr<std::int64_t>() + size};
}

std::vector<std::int64_t> whole_pass(Sampler& sampler) {
  auto order = sampler.begin_pass();
  sampler.end_pass();
  return order;
}

TEST(SequentialSamplerTest, SamplesAreVisitedInOrderInEveryPass) {
  SequentialSampler sampler(4);
  EXPECT_EQ(sampler.size(), 4);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(whole_pass(sampler), ElementsAre(0, 1, 2, 3));
}

TEST(RandomSamplerTest, APassIsAPermutationOfItsGenerator) {
  RandomSampler sampler(20, make_generator(5));
  EXPECT_EQ(sampler.begin_pass(), randperm(20, make_generator(5)));
}

TEST(RandomSamplerTest, TheEndOfAPassDrawsASecondPermutation) {
  const auto generator = make_generator(5), reference = make_generator(5);
  RandomSampler sampler(20, generator);
  sampler.begin_pass();
  randperm(20, reference);
  EXPECT_TRUE(generator.get_state().equal(reference.get_state()));
  sampler.end_pass();
  EXPECT_FALSE(generator.get_state().equal(reference.get_state()));
  randperm(20, reference);
  EXPECT_TRUE(generator.get_state().equal(reference.get_state()));
}

TEST(RandomSamplerTest, WithoutAGeneratorAPassIsSeededByOneDrawOfTheDefaultOne) {
  const auto reference = make_generator(9);
  const GeneratorScope scope(make_generator(9));
  RandomSampler sampler(20);
  for (int pass = 0; pass < 2; ++pass) {
    const auto seed = static_cast<std::uint64_t>(draw_int64(reference));
    EXPECT_EQ(whole_pass(sampler), randperm(20, make_generator(seed)));
    EXPECT_TRUE(default_generator().get_state().equal(reference.get_state()));
  }
}

TEST(RandomSamplerTest, NoSamplesDrawNoPermutation) {
  const auto generator = make_generator(5);
  RandomSampler sampler(0, generator);
  EXPECT_TRUE(whole_pass(sampler).empty());
  EXPECT_TRUE(generator.get_state().equal(make_generator(5).get_state()));
}

// The permutations that Accelerate gave for data_seed 7.
TEST(SeedableRandomSamplerTest, TheOrderIsAcceleratesForEachEpoch) {
  SeedableRandomSampler sampler(8, /*data_seed=*/7);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
  EXPECT_THAT(whole_pass(sampler), ElementsAre(3, 6, 5, 7, 2, 1, 4, 0));
}

TEST(SeedableRandomSamplerTest, AnUnfinishedPassIsRepeated) {
  SeedableRandomSampler sampler(8, /*data_seed=*/7);
  sampler.begin_pass();
  EXPECT_THAT(sampler.begin_pass(), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

TEST(SeedableRandomSamplerTest, TheEpochThatItIsToldCounts) {
  SeedableRandomSampler sampler(8, /*data_seed=*/7);
  sampler.set_epoch(1);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(3, 6, 5, 7, 2, 1, 4, 0));
  sampler.set_epoch(0);
  EXPECT_THAT(whole_pass(sampler), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

TEST(SeedableRandomSamplerTest, WhatWasDrawnBeforeDoesNotMatter) {
  const auto generator = make_generator(1);
  draw_int64(generator);
  SeedableRandomSampler sampler(8, /*data_seed=*/7, generator);
  EXPECT_THAT(sampler.begin_pass(), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

TEST(SeedableRandomSamplerTest, TheDefaultSeedIsThatOfTheDefaultGenerator) {
  const GeneratorScope scope(make_generator(7));
  draw_int64(default_generator());
  SeedableRandomSampler sampler(8, /*data_seed=*/std::nullopt);
  EXPECT_THAT(sampler.begin_pass(), ElementsAre(7, 0, 3, 4, 1, 5, 2, 6));
}

}  // namespace
}  // namespace accel
