// Trees (structs, tuples, maps of tensors) as bytes, for broadcasting objects between ranks. Every leaf must arrive
// unchanged on machines of one architecture, and bytes of another type must be rejected.
#include "reference/tree/tree_bytes.hpp"

#include <gmock/gmock.h>

#include "tests/support/torch.hpp"

using ::testing::ElementsAre;

namespace accel {
namespace {

// One member of each kind of leaf.
struct Everything {
  at::Tensor tensor, undefined;
  bool flag = false;
  double number = 0;
  std::vector<std::string> words;
  std::vector<bool> flags;
  std::map<std::string, std::pair<int, at::Tensor>> by_name;
  std::array<std::int16_t, 2> pair{};
};

}  // namespace

template <>
inline constexpr auto tree_members<Everything> =
    std::tuple(&Everything::tensor, &Everything::undefined, &Everything::flag, &Everything::number, &Everything::words,
               &Everything::flags, &Everything::by_name, &Everything::pair);

namespace {

TEST(TreeBytesTest, EveryLeafSurvivesARoundTrip) {
  // A transposed tensor is not contiguous, so its bytes must be gathered.
  const Everything sent{.tensor = torch::randn({3, 2}).t(),
                        .flag = true,
                        .number = -0.5,
                        .words = {"", "a b"},
                        .flags = {true, false},
                        .by_name = {{"x", {7, torch::arange(4)}}},
                        .pair = {-1, 2}};
  const auto copy = unpack<Everything>(pack(sent));
  EXPECT_TRUE(copy.tensor.equal(sent.tensor));
  EXPECT_FALSE(copy.undefined.defined());
  EXPECT_TRUE(copy.flag);
  EXPECT_EQ(copy.number, -0.5);
  EXPECT_THAT(copy.words, ElementsAre("", "a b"));
  EXPECT_THAT(copy.flags, ElementsAre(true, false));
  EXPECT_EQ(copy.by_name.at("x").first, 7);
  EXPECT_TRUE(copy.by_name.at("x").second.equal(torch::arange(4)));
  EXPECT_EQ(copy.pair, sent.pair);
}

// Shapes with a 0 and without dimensions are the edge cases of the format.
TEST(TreeBytesTest, EveryDtypeKeepsItsBytes) {
  for (const auto dtype : {at::kByte, at::kChar, at::kShort, at::kInt, at::kLong, at::kHalf, at::kBFloat16, at::kFloat,
                           at::kDouble, at::kBool, at::kComplexFloat}) {
    const auto tensor = torch::ones({2, 0, 3}).to(dtype), number = torch::full({}, 1).to(dtype);
    EXPECT_EQ(unpack<at::Tensor>(pack(tensor)).sizes(), tensor.sizes()) << c10::toString(dtype);
    EXPECT_TRUE(unpack<at::Tensor>(pack(number)).equal(number)) << c10::toString(dtype);
  }
}

// These are flags on a view in LibTorch, and the bytes in memory are those of the original.
TEST(TreeBytesTest, ConjugatedAndNegatedViewsAreResolved) {
  const auto tensor = torch::complex(torch::arange(3.0), torch::ones(3)).conj();
  EXPECT_TRUE(unpack<at::Tensor>(pack(tensor)).equal(tensor.resolve_conj()));
  EXPECT_TRUE(unpack<at::Tensor>(pack(at::imag(tensor))).equal(at::imag(tensor).resolve_neg()));
}

// Dispatched loaders announce shapes before they send the data.
TEST(TreeBytesTest, ShapesWithoutDataAreAFewBytes) {
  const auto tensor = torch::ones({100, 100});
  const auto bytes = pack(tensor, TensorBytes::kShapeOnly);
  EXPECT_LT(bytes.size(), 64);
  const auto empty = unpack<at::Tensor>(bytes, TensorBytes::kShapeOnly);
  EXPECT_EQ(empty.sizes(), tensor.sizes());
  EXPECT_EQ(empty.scalar_type(), at::kFloat);
}

// Two ranks that run different programs must get an error, not wrong values.
TEST(TreeBytesTest, BytesOfAnotherTypeAreRejected) {
  EXPECT_THROW(unpack<std::string>(pack(std::string("abc")).substr(0, 9)), ArgumentError);
  EXPECT_THROW(unpack<std::int32_t>(pack(std::int64_t{1})), ArgumentError);
}

TEST(TreeBytesTest, AnOptionalSurvivesARoundTripWithAndWithoutAValue) {
  using Tree = std::vector<std::optional<std::pair<at::Tensor, std::optional<int>>>>;
  const Tree sent{std::nullopt, std::pair(torch::arange(3), std::optional<int>()), std::pair(torch::ones({1}), 7)};
  const auto copy = unpack<Tree>(pack(sent));
  ASSERT_EQ(copy.size(), 3U);
  EXPECT_FALSE(copy[0].has_value());
  EXPECT_TRUE(copy[1]->first.equal(torch::arange(3)));
  EXPECT_FALSE(copy[1]->second.has_value());
  EXPECT_EQ(copy[2]->second, 7);
}

}  // namespace
}  // namespace accel
