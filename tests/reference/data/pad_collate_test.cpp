// PadCollate and its mask, for samples of different lengths. Padding values, sides and multiples are those of
// Transformers' data collators.
#include "reference/data/collate.hpp"

#include <gmock/gmock.h>

#include "reference/data/data_loader.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

using Sample = std::pair<at::Tensor, std::int64_t>;

std::vector<Sample> samples() {
  return {{torch::tensor({1, 2, 3}), 7}, {torch::tensor({4}), 8}, {torch::empty({0}, torch::kLong), 9}};
}

// One sample is empty, which is the extreme case of padding.
TEST(PadCollateTest, TensorsArePaddedAndNumbersCollatedAsUsual) {
  const auto [tokens, label] = PadCollate()(samples());
  EXPECT_TRUE(tokens.equal(torch::tensor({{1, 2, 3}, {4, 0, 0}, {0, 0, 0}})));
  EXPECT_TRUE(label.equal(torch::tensor({7, 8, 9})));
}

// The names and meanings are those of Transformers' tokenizers.
TEST(PadCollateTest, ValueSideAndMultipleAreOptions) {
  const auto [tokens, label] =
      // -100 is the label that cross_entropy ignores.
      PadCollate({.padding_values = {-100}, .pad_to_multiple_of = 2, .padding_side = "left"})(samples());
  EXPECT_TRUE(tokens.equal(torch::tensor({{-100, 1, 2, 3}, {-100, -100, -100, 4}, {-100, -100, -100, -100}})));
}

// Tokens, labels and fixed-size features in one sample.
TEST(PadCollateTest, EachTensorHasItsOwnLengthAndValueAndMayBeLeftAlone) {
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  const std::vector<Three> batch{{torch::tensor({1, 2}), torch::tensor({0.5}), torch::tensor({1, 2, 3})},
                                 {torch::tensor({3}), torch::tensor({1.5, 2.5}), torch::tensor({4, 5, 6})}};
  const auto [a, b, c] = PadCollate({.padding_values = {0, -1.5, std::nullopt}, .pad_to_multiple_of = 2})(batch);
  EXPECT_TRUE(a.equal(torch::tensor({{1, 2}, {3, 0}})));
  EXPECT_TRUE(b.equal(torch::tensor({{0.5, -1.5}, {1.5, 2.5}})));
  EXPECT_TRUE(c.equal(torch::tensor({{1, 2, 3}, {4, 5, 6}})));
}

// Dimensions that are not padded have to agree.
TEST(PadCollateTest, AnotherDimensionThanTheFirstMayBePadded) {
  const std::vector<at::Tensor> images{torch::ones({2, 3}), torch::ones({2, 1})};
  const auto batch = PadCollate({.dim = 1})(images);
  EXPECT_TRUE(batch[1].equal(torch::tensor({{1.0F, 0.0F, 0.0F}, {1.0F, 0.0F, 0.0F}})));
  EXPECT_THROW(PadCollate()(std::vector<at::Tensor>{torch::ones({2, 3}), torch::ones({2, 1})}), ArgumentError);
}

// Only tensors with a length are padded.
TEST(PadCollateTest, ScalarTensorsStringsAndMapsKeepTheirForm) {
  using Map = std::map<std::string, at::Tensor>;
  const std::vector<std::pair<Map, std::string>> batch{
      {{{"ids", torch::tensor({1})}, {"score", torch::tensor(0.5)}}, "a"},
      {{{"ids", torch::tensor({2, 3})}, {"score", torch::tensor(1.5)}}, "b"}};
  const auto [map, names] = PadCollate()(batch);
  EXPECT_TRUE(map.at("ids").equal(torch::tensor({{1, 0}, {2, 3}})));
  EXPECT_TRUE(map.at("score").equal(torch::tensor({0.5, 1.5})));
  EXPECT_EQ(names, std::vector<std::string>({"a", "b"}));
}

// A data set may return the same tensor again in the next epoch.
TEST(PadCollateTest, SamplesAreNotChanged) {
  const auto given = samples();
  PadCollate()(given);
  EXPECT_EQ(given[1].first.size(0), 1);
}

// Models ignore the padding by this mask.
TEST(PadCollateTest, TheMaskIsOneOnDataForEitherSide) {
  const auto right = PadCollateWithMask({.pad_to_multiple_of = 4})(samples()).second;
  EXPECT_TRUE(right.equal(torch::tensor({{1, 1, 1, 0}, {1, 0, 0, 0}, {0, 0, 0, 0}})));
  const auto left = PadCollateWithMask({.padding_side = "left"})(samples()).second;
  EXPECT_TRUE(left.equal(torch::tensor({{1, 1, 1}, {0, 0, 1}, {0, 0, 0}})));
  EXPECT_TRUE(right.sum(1).equal(torch::tensor({3, 1, 0})));
  EXPECT_THROW(PadCollateWithMask()(std::vector<std::int64_t>{1, 2}), ArgumentError);
}

// The first tensor is not padded here, so the mask must have the shape of the second.
TEST(PadCollateTest, TheMaskBelongsToTheFirstPaddedTensor) {
  using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;
  const std::vector<Three> batch{{torch::ones({4}), torch::ones({2}), torch::ones({1})},
                                 {torch::ones({4}), torch::ones({1}), torch::ones({3})}};
  const auto mask = PadCollateWithMask({.padding_values = {std::nullopt, 0, 0}})(batch).second;
  EXPECT_TRUE(mask.equal(torch::tensor({{1, 1}, {1, 0}})));
}

TEST(PadCollateTest, InvalidOptionsAndSamplesAreArgumentErrors) {
  EXPECT_THROW(PadCollate({.dim = -1}), ArgumentError);
  EXPECT_THROW(PadCollate({.pad_to_multiple_of = 0}), ArgumentError);
  EXPECT_THROW(PadCollate({.padding_side = "both"}), ArgumentError);
  EXPECT_THROW(PadCollate({.padding_values = {0, 0}})(samples()), ArgumentError);
  const std::vector<std::vector<at::Tensor>> uneven{{torch::ones({2})}, {torch::ones({2}), torch::ones({2})}};
  EXPECT_THROW(PadCollate()(uneven), ArgumentError);
}

// Padding to the longest of all samples would waste memory.
TEST(PadCollateTest, ALoaderPadsEachBatchToItsLongestSample) {
  struct Sentences {
    [[nodiscard]] std::int64_t size() const { return 4; }
    [[nodiscard]] at::Tensor get(std::int64_t index) const { return torch::full({index + 1}, index); }
  };
  const auto context = make_single_rank();
  const RankScope scope(*context);
  DataLoader loader(Sentences(), {.batch_size = 2, .num_workers = 2}, PadCollateWithMask());
  std::vector<std::int64_t> lengths;
  for (auto& [tokens, mask] : loader) {
    EXPECT_EQ(tokens.sizes(), mask.sizes());
    lengths.push_back(tokens.size(1));
  }
  EXPECT_THAT(lengths, ::testing::ElementsAre(2, 4));
}

}  // namespace
}  // namespace accel
