// Rows of trees: concatenating and slicing batches leaf by leaf. gather_for_metrics and dispatched loaders depend
// on all leaves being cut at the same rows.
#include "reference/tree/tree_rows.hpp"

#include <gmock/gmock.h>

#include "tests/support/torch.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

// A batch with tensors, names and a map, as collate functions produce them.
struct Texts {
  at::Tensor ids;
  std::vector<std::string> names;
  std::map<std::string, at::Tensor> extra;
};

}  // namespace

template <>
inline constexpr auto tree_members<Texts> = std::tuple(&Texts::ids, &Texts::names, &Texts::extra);

namespace {

// Samples with the numbers from `begin` to `end`.
Texts texts(std::int64_t begin, std::int64_t end) {
  Texts batch{.ids = torch::arange(begin, end), .extra = {{"twice", 2 * torch::arange(begin, end)}}};
  for (auto id = begin; id < end; ++id) batch.names.push_back(std::to_string(id));
  return batch;
}

// The concepts decide which overload of gather is chosen, so they are tested at compile time.
static_assert(RowTree<at::Tensor> && RowTree<Texts> && RowTree<std::vector<std::string>>);
static_assert(!RowTree<double> && !RowTree<std::pair<at::Tensor, std::string>> && !RowTree<std::map<std::string, int>>);
static_assert(SampleList<std::vector<std::string>> && !SampleList<std::vector<at::Tensor>> &&
              !SampleList<std::vector<Texts>>);

// Tensors, lists of names and maps of tensors alike.
TEST(TreeRowsTest, ConcatenatedRowsFollowEachOtherInEveryLeaf) {
  const auto both = concatenate(std::vector{texts(0, 2), texts(2, 3)});
  EXPECT_TRUE(both.ids.equal(torch::arange(3)));
  EXPECT_THAT(both.names, ElementsAre("0", "1", "2"));
  EXPECT_TRUE(both.extra.at("twice").equal(2 * torch::arange(3)));
}

TEST(TreeRowsTest, ASliceKeepsTheRowsOfEveryLeaf) {
  const auto slice = slice_rows(texts(0, 5), {.begin = 1, .end = 3});
  EXPECT_TRUE(slice.ids.equal(torch::tensor({1, 2}, at::kLong)));
  EXPECT_THAT(slice.names, ElementsAre("1", "2"));
  EXPECT_TRUE(slice.extra.at("twice").equal(torch::tensor({2, 4}, at::kLong)));
}

// Not to be confused with a list of samples, whose lengths would add up.
TEST(TreeRowsTest, AVectorOfTensorsIsConcatenatedElementwise) {
  const std::vector<at::Tensor> first{torch::zeros(2), torch::ones(2)}, second{torch::zeros(1), torch::ones(1)};
  const auto both = concatenate(std::vector{first, second});
  ASSERT_EQ(both.size(), 2);
  EXPECT_TRUE(both[1].equal(torch::ones(3)));
  EXPECT_THROW(concatenate(std::vector{first, {torch::zeros(1)}}), ArgumentError);
}

// LibTorch would broadcast or convert some of these.
TEST(TreeRowsTest, IncompatibleTreesAreArgumentErrors) {
  EXPECT_THROW(concatenate(std::vector{torch::zeros({2, 3}), torch::zeros({2, 4})}), ArgumentError);
  EXPECT_THROW(concatenate(std::vector{torch::zeros(2), torch::zeros(2, at::kLong)}), ArgumentError);
  EXPECT_THROW(concatenate(std::vector{torch::tensor(1.0), torch::tensor(2.0)}), ArgumentError);
  EXPECT_THROW((concatenate(std::vector<std::pair<at::Tensor, int>>{{torch::zeros(1), 1}, {torch::zeros(1), 2}})),
               ArgumentError);
  EXPECT_THROW(concatenate(std::vector<at::Tensor>{}), ArgumentError);
  EXPECT_THROW(slice_rows(texts(0, 2), {.end = 3}), ArgumentError);
}

// A number that belongs to the whole batch, such as a length, has no rows to concatenate.
TEST(TreeRowsTest, EqualNumbersAreKept) {
  const std::pair<at::Tensor, int> part{torch::zeros(1), 7};
  EXPECT_EQ(concatenate(std::vector{part, part}).second, 7);
}

// Otherwise a slice would tear samples apart.
TEST(TreeRowsTest, AllLeavesShareOneNumberOfRows) {
  EXPECT_EQ(num_rows(texts(0, 4)), 4);
  EXPECT_EQ(num_rows(std::tuple(1.0, std::string("x"))), std::nullopt);
  auto uneven = texts(0, 4);
  uneven.names.pop_back();
  EXPECT_THROW(num_rows(uneven), ArgumentError);
  EXPECT_THROW(num_rows(torch::tensor(1.0)), ArgumentError);
}

TEST(TreeRowsTest, AnOptionalHasTheRowsOfItsValue) {
  using Batch = std::pair<at::Tensor, std::optional<at::Tensor>>;
  static_assert(RowTree<Batch> && !RowTree<std::optional<int>>);
  const Batch with{torch::arange(2), torch::arange(10, 12)}, without{torch::arange(2), std::nullopt};
  EXPECT_TRUE(concatenate(std::vector{with, with}).second->equal(torch::tensor({10, 11, 10, 11})));
  EXPECT_FALSE(concatenate(std::vector{without, without}).second.has_value());
  EXPECT_THROW(concatenate(std::vector{with, without}), ArgumentError);
  EXPECT_TRUE(slice_rows(with, {.begin = 1, .end = 2}).second->equal(torch::tensor({11})));
  EXPECT_EQ(num_rows(without), 2);
  EXPECT_THROW(num_rows(Batch(torch::arange(2), torch::arange(3))), ArgumentError);
  EXPECT_TRUE(pad_rows<Batch>(with, with, 3).second->equal(torch::tensor({10, 11, 10})));
}

}  // namespace
}  // namespace accel
