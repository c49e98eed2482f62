// default_collate, which must give the batches of torch.utils.data.default_collate in Python: shapes, dtypes and
// nesting.
#include "reference/data/collate.hpp"

#include <gmock/gmock.h>

#include "tests/support/torch.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

// A sample as a struct of tensors.
struct Pair {
  at::Tensor image, label;
};

}  // namespace

template <>
inline constexpr auto tree_members<Pair> = std::tuple(&Pair::image, &Pair::label);

namespace {

at::Tensor row(double a, double b) { return torch::tensor({a, b}, at::kDouble); }

// Equal values and equal dtypes.
void expect_same(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_EQ(actual.scalar_type(), expected.scalar_type());
  EXPECT_TRUE(actual.equal(expected)) << actual << "\nexpected\n" << expected;
}

const auto kTwoRows = [] { return torch::tensor({{1.0, 2.0}, {3.0, 4.0}}, at::kDouble); };

TEST(CollateTest, TensorsAreStackedOnANewFirstDimension) {
  expect_same(default_collate(std::vector<at::Tensor>{row(1, 2), row(3, 4)}), kTwoRows());
  EXPECT_THAT(default_collate(std::vector<at::Tensor>{torch::tensor(1.0), torch::tensor(2.0)}).sizes(), ElementsAre(2));
}

// Python's int is int64 and its float becomes float64, for every C++ type.
TEST(CollateTest, NumbersBecomeTensorsOfPythonsTypes) {
  expect_same(default_collate(std::vector<int>{1, -2}), torch::tensor({1, -2}, at::kLong));
  expect_same(default_collate(std::vector<std::uint8_t>{1, 200}), torch::tensor({1, 200}, at::kLong));
  expect_same(default_collate(std::vector<float>{0.5F, 2.0F}), torch::tensor({0.5, 2.0}, at::kDouble));
  expect_same(default_collate(std::vector<bool>{true, false}), torch::tensor({true, false}));
}

// As in PyTorch, where a batch of strings is a list.
TEST(CollateTest, StringsBecomeAVectorOfStrings) {
  EXPECT_THAT(default_collate(std::vector<std::string>{"a", "b"}), ElementsAre("a", "b"));
}

// Numbers become a tensor, strings a list, as in PyTorch.
TEST(CollateTest, TuplesAreCollatedElementwise) {
  using Sample = std::tuple<at::Tensor, int, std::string, bool>;
  const auto [image, label, name, flag] =
      default_collate(std::vector<Sample>{{row(1, 2), 5, "a", true}, {row(3, 4), 6, "b", false}});
  expect_same(image, kTwoRows());
  expect_same(label, torch::tensor({5, 6}, at::kLong));
  EXPECT_THAT(name, ElementsAre("a", "b"));
  expect_same(flag, torch::tensor({true, false}));
}

// A batch of lists becomes a list of batches, as in Python.
TEST(CollateTest, SequencesAreCollatedElementwise) {
  const auto batch = default_collate(std::vector<std::vector<int>>{{1, 2, 3}, {4, 5, 6}});
  ASSERT_EQ(batch.size(), 3U);
  expect_same(batch[1], torch::tensor({2, 5}, at::kLong));
  const auto pairs = default_collate(std::vector<std::array<at::Tensor, 1>>{{row(1, 2)}, {row(3, 4)}});
  expect_same(pairs[0], kTwoRows());
}

TEST(CollateTest, MapsAreCollatedKeyByKey) {
  using Sample = std::map<std::string, std::pair<at::Tensor, int>>;
  const auto batch = default_collate(std::vector<Sample>{{{"x", {row(1, 2), 5}}}, {{"x", {row(3, 4), 6}}}});
  expect_same(std::get<0>(batch.at("x")), kTwoRows());
  expect_same(std::get<1>(batch.at("x")), torch::tensor({5, 6}, at::kLong));
}

// The batch is used like a sample, with the same member names.
TEST(CollateTest, AStructOfTensorsKeepsItsType) {
  const Pair batch = default_collate(std::vector<Pair>{{row(1, 2), torch::tensor(0)}, {row(3, 4), torch::tensor(1)}});
  expect_same(batch.image, kTwoRows());
  expect_same(batch.label, torch::tensor({0, 1}));
}

// Batches of texts need PadCollate; the error must come from here and not from a model.
TEST(CollateTest, SamplesOfDifferentShapesAreArgumentErrors) {
  EXPECT_THROW(default_collate(std::vector<at::Tensor>{torch::zeros({2}), torch::zeros({3})}), ArgumentError);
  EXPECT_THROW(default_collate(std::vector<std::vector<int>>{{1}, {2, 3}}), ArgumentError);
  EXPECT_THROW(default_collate(std::vector<std::vector<int>>{{}, {2}}), ArgumentError);
}

TEST(CollateTest, SamplesOfDifferentKeysAreArgumentErrors) {
  using Sample = std::map<std::string, int>;
  EXPECT_THROW(default_collate(std::vector<Sample>{{{"x", 1}}, {{"y", 1}}}), ArgumentError);
  EXPECT_THROW(default_collate(std::vector<Sample>{{{"x", 1}}, {{"x", 1}, {"y", 1}}}), ArgumentError);
  EXPECT_THROW(default_collate(std::vector<Sample>{{}, {{"y", 1}}}), ArgumentError);
}

TEST(CollateTest, NoSamplesAreAnArgumentError) { EXPECT_THROW(default_collate(std::vector<int>{}), ArgumentError); }

TEST(CollateTest, AnOptionalHasAValueInAllSamplesOrNone) {
  using Sample = std::pair<at::Tensor, std::optional<at::Tensor>>;
  const auto [tokens, masks] =
      default_collate(std::vector<Sample>{{row(1, 2), torch::tensor(0)}, {row(3, 4), torch::tensor(1)}});
  expect_same(*masks, torch::tensor({0, 1}));
  const auto without = default_collate(std::vector<Sample>{{row(1, 2), {}}, {row(3, 4), {}}});
  EXPECT_FALSE(std::get<1>(without).has_value());
  EXPECT_THROW(default_collate(std::vector<Sample>{{row(1, 2), {}}, {row(3, 4), torch::tensor(1)}}), ArgumentError);
  EXPECT_THROW(default_collate(std::vector<Sample>{{row(1, 2), torch::tensor(1)}, {row(3, 4), {}}}), ArgumentError);
}

}  // namespace
}  // namespace accel
