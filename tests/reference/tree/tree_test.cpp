// Trees: which types are trees, the order in which leaves are visited, and mapping functions over tensors. Ranks
// communicate leaf by leaf, so the order must be the same on every rank.
#include "reference/tree/tree.hpp"

#include <gmock/gmock.h>

#include "reference/accelerator/tree_device.hpp"
#include "tests/support/torch.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

// A user's struct; one tensor is left out of tree_members on purpose.
struct Sample {
  at::Tensor image;
  std::string name;
  std::int64_t label = 0;
  std::vector<at::Tensor> boxes;
  at::Tensor not_a_member;
};

// A batch without a mask in some steps.
struct Masked {
  at::Tensor tokens;
  std::optional<at::Tensor> mask;
  std::optional<std::vector<at::Tensor>> others;
};

}  // namespace

template <>
inline constexpr auto tree_members<Masked> = std::tuple(&Masked::tokens, &Masked::mask, &Masked::others);

template <>
inline constexpr auto tree_members<Sample> = std::tuple(&Sample::image, &Sample::name, &Sample::label, &Sample::boxes);

namespace {

at::Tensor number(double value) { return torch::full({1}, value, at::kDouble); }

template <Tree T>
std::vector<double> numbers_in(const T& tree) {
  std::vector<double> values;
  for_each_tensor(tree, [&](const at::Tensor& tensor) { values.push_back(tensor.item<double>()); });
  return values;
}

at::Tensor negated(const at::Tensor& tensor) { return -tensor; }

// Ranks communicate leaf by leaf, so the order must be the same everywhere.
TEST(TreeTest, LeavesAreVisitedInTheOrderOfTheMembers) {
  const Sample sample{number(1), "cat", 7, {number(2), number(3)}, number(9)};
  std::string kinds;
  // t is a tensor, s a string, n a number.
  for_each_leaf(sample, [&](const auto& leaf) {
    kinds += TensorLeaf<decltype(leaf)> ? 't' : NumberLeaf<decltype(leaf)> ? 'n' : 's';
  });
  EXPECT_EQ(kinds, "tsntt");
  EXPECT_THAT(numbers_in(sample), ElementsAre(1, 2, 3));
}

// std::map sorts its keys, so insertion order does not matter, in contrast to Python's dict.
TEST(TreeTest, AMapIsVisitedInTheOrderOfItsKeys) {
  const std::map<std::string, at::Tensor> tree{{"b", number(2)}, {"a", number(1)}, {"c", number(3)}};
  EXPECT_THAT(numbers_in(tree), ElementsAre(1, 2, 3));
}

TEST(TreeTest, ForEachTensorMayReplaceTheTensorsOfATree) {
  std::array<at::Tensor, 2> tree{number(1), number(2)};
  for_each_tensor(tree, [](at::Tensor& tensor) { tensor = tensor * 10; });
  EXPECT_THAT(numbers_in(tree), ElementsAre(10, 20));
}

// All supported containers, one inside the other.
TEST(TreeTest, MapTensorsReachesEveryTensorOfNestedContainers) {
  using Nested = std::tuple<at::Tensor, std::pair<at::Tensor, int>, std::vector<std::array<at::Tensor, 1>>,
                            std::map<std::string, at::Tensor>>;
  const Nested tree{number(1), {number(2), 5}, {{number(3)}, {number(4)}}, {{"key", number(5)}}};
  const auto mapped = map_tensors(tree, negated);
  EXPECT_THAT(numbers_in(mapped), ElementsAre(-1, -2, -3, -4, -5));
  EXPECT_EQ(std::get<1>(mapped).second, 5);
}

TEST(TreeTest, MapTensorsDoesNotChangeItsArgument) {
  const std::vector<at::Tensor> tree{number(1), number(2)};
  map_tensors(tree, negated);
  EXPECT_THAT(numbers_in(tree), ElementsAre(1, 2));
}

// A member that is no part of the tree is copied unchanged.
TEST(TreeTest, MapTensorsOfAStructCopiesOtherLeavesAndMembers) {
  const Sample sample{number(1), "cat", 7, {number(2)}, number(9)};
  const auto mapped = map_tensors(sample, negated);
  EXPECT_THAT(numbers_in(mapped), ElementsAre(-1, -2));
  EXPECT_EQ(mapped.name, "cat");
  EXPECT_EQ(mapped.label, 7);
  EXPECT_EQ(mapped.not_a_member.item<double>(), 9);
}

// A struct without tree_members may contain tensors that would not be found, so it must not pass as an empty tree.
TEST(TreeTest, AStructWithoutTreeMembersIsNoTree) {
  struct Other {
    at::Tensor tensor;
  };
  EXPECT_FALSE(Tree<Other>);
  EXPECT_TRUE(Tree<Sample>);
}

// As in Accelerate, even if a later tensor differs.
TEST(TreeTest, TheBatchSizeIsThatOfTheFirstTensor) {
  const std::tuple<std::string, at::Tensor, at::Tensor> batch{"text", torch::zeros({3, 2}), torch::zeros({5})};
  EXPECT_EQ(find_batch_size(batch), 3);
}

// As in Accelerate, which raises an error too.
TEST(TreeTest, ABatchWithoutTensorsHasNoSize) {
  EXPECT_THROW(find_batch_size(std::pair<int, std::string>(1, "one")), ArgumentError);
  EXPECT_THROW(find_batch_size(std::vector<at::Tensor>{}), ArgumentError);
}

TEST(TreeTest, ABatchOfATensorWithoutDimensionsHasNoSize) {
  EXPECT_THROW(find_batch_size(torch::tensor(1.0)), ArgumentError);
}

// The device without memory shows what was sent.
TEST(TreeTest, TensorsAreSentToADeviceExceptThoseOfSkippedKeys) {
  using Parts = std::map<std::string, std::vector<at::Tensor>>;
  const std::pair<Parts, int> tree{{{"sent", {torch::ones({2})}}, {"kept", {torch::ones({3})}}}, 7};
  const auto sent = send_to_device(tree, at::kMeta, {.skip_keys = {"kept"}});
  EXPECT_TRUE(sent.first.at("sent")[0].is_meta());
  EXPECT_TRUE(sent.first.at("kept")[0].is_cpu());
  EXPECT_EQ(sent.second, 7);
  EXPECT_TRUE(tree.first.at("sent")[0].is_cpu());
  Sample sample{.image = torch::ones({2}), .name = "a", .boxes = {torch::ones({1})}};
  EXPECT_TRUE(send_to_device(sample, at::kMeta).boxes[0].is_meta());
}

TEST(TreeTest, TheDeviceIsThatOfTheFirstTensor) {
  EXPECT_EQ(find_device(std::pair(1, torch::ones({1}, at::kMeta))), at::kMeta);
  EXPECT_EQ(find_device(std::pair(1, std::string("a"))), std::nullopt);
}

TEST(TreeTest, AnOptionalHasTheLeavesOfItsValue) {
  const Masked empty{.tokens = number(1), .mask = {}, .others = {}};
  const Masked full{.tokens = number(1), .mask = number(2), .others = std::vector{number(3), number(4)}};
  EXPECT_THAT(numbers_in(empty), ElementsAre(1));
  EXPECT_THAT(numbers_in(full), ElementsAre(1, 2, 3, 4));
  const auto result = map_tensors(full, negated);
  EXPECT_EQ(result.mask->item<double>(), -2);
  EXPECT_THAT(numbers_in(result), ElementsAre(-1, -2, -3, -4));
  EXPECT_FALSE(map_tensors(empty, negated).mask.has_value());
  EXPECT_THAT(numbers_in(std::optional(full)), ElementsAre(1, 2, 3, 4));
  EXPECT_TRUE((detail::TensorTree<Masked>)&&(detail::TensorTree<std::optional<at::Tensor>>));
  EXPECT_FALSE(detail::TensorTree<std::optional<int>>);
  EXPECT_EQ(find_batch_size(std::optional(number(1))), 1);
}

TEST(TreeTest, AnOptionalIsMovedToADevice) {
  const Masked full{.tokens = number(1), .mask = number(2), .others = {}};
  const auto sent = send_to_device(full, at::kMeta);
  EXPECT_TRUE(sent.mask->is_meta());
  EXPECT_FALSE(sent.others.has_value());
  using Entries = std::optional<std::map<std::string, at::Tensor>>;
  const auto entries = send_to_device(Entries({{"a", number(1)}, {"b", number(2)}}), at::kMeta, {.skip_keys = {"b"}});
  EXPECT_TRUE(entries->at("a").is_meta());
  EXPECT_FALSE(entries->at("b").is_meta());
}

}  // namespace
}  // namespace accel
