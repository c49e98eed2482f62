// Value, the dynamic type of state dicts: equality, conversions and serialization.
#include "reference/tree/value.hpp"

#include <gmock/gmock.h>

#include "reference/tree/tree_bytes.hpp"
#include "tests/support/torch.hpp"

namespace accel {
namespace {

/// A type with private members, for which a conversion to a tree is declared.
class Date {
 public:
  Date() = default;
  Date(int year, int day) : year_(year), day_(day) {}
  [[nodiscard]] std::pair<int, int> parts() const { return {year_, day_}; }
  friend bool operator==(const Date&, const Date&) = default;

 private:
  int year_ = 0, day_ = 0;
};

}  // namespace

// How a user makes a type with private members serialisable.
template <>
struct tree_conversion<Date> {
  static std::pair<int, int> to_tree(const Date& date) { return date.parts(); }
  static Date from_tree(const std::pair<int, int>& parts) { return {parts.first, parts.second}; }
};

namespace {

// One value of each kind, with bytes that are not text.
Value everything() {
  return Value::Dict{{"null", Value()},
                     {"flag", true},
                     {"count", std::int64_t{-3}},
                     {"ratio", 0.1},
                     {"name", "\0 a name with \xff bytes"},
                     {"tensor", torch::arange(6).reshape({2, 3})},
                     {"halves", torch::ones({2}, torch::kHalf)},
                     {"list", Value::List{1, "two", Value::List{}, Value::Dict{{"deep", torch::empty({0})}}}}};
}

TEST(ValueTest, BytesGiveTheValueBack) {
  EXPECT_EQ(unpack<Value>(pack(everything())), everything());
  EXPECT_EQ(unpack<Value>(pack(Value())), Value());
}

// In Python 1 == 1.0 == True. A checkpoint must keep the types apart, or a restored state would differ.
TEST(ValueTest, ValuesAreEqualIfTypeAndContentAreEqual) {
  EXPECT_NE(Value(1), Value(1.0));
  EXPECT_NE(Value(1), Value(true));
  EXPECT_NE(Value("1"), Value(1));
  EXPECT_EQ(Value(torch::ones({2})), Value(torch::ones({2})));
  EXPECT_NE(Value(torch::ones({2})), Value(torch::ones({1, 2})));
  EXPECT_NE(Value(torch::ones({2})), Value(torch::ones({2}, torch::kDouble)));
  EXPECT_EQ(Value(torch::full({1}, NAN)), Value(torch::full({1}, NAN))) << "the same bytes";
}

// Such errors come from a user's hooks, who sees only this message.
TEST(ValueTest, WrongTypesAndMissingKeysAreExplained) {
  const auto message = [](auto&& f) -> std::string {
    try {
      f();
    } catch (const ArgumentError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message([] { (void)everything().at("count").as<std::string>(); }),
              ::testing::HasSubstr("expected a value of type string, got int"));
  EXPECT_THAT(message([] { (void)everything().at("size"); }), ::testing::HasSubstr("'size'"));
  EXPECT_THAT(message([] { (void)Value(3).at("size"); }),
              ::testing::HasSubstr("expected a value of type dict, got int"));
  EXPECT_FALSE(Value(3).contains("size"));
}

// Every read has to check how many bytes are left.
TEST(ValueTest, TruncatedBytesAreAnError) {
  const auto bytes = pack(everything());
  for (const std::size_t size : {std::size_t{0}, std::size_t{7}, bytes.size() / 2, bytes.size() - 1}) {
    EXPECT_THROW(unpack<Value>(bytes.substr(0, size)), Error) << size;
  }
}

// The conversion must also be found for types inside containers.
TEST(TreeConversionTest, AUsersTypeIsSerializedInsideATree) {
  const std::map<std::string, std::vector<Date>> dates{{"births", {Date(1912, 175), Date(1906, 344)}}, {"none", {}}};
  EXPECT_EQ((unpack<std::map<std::string, std::vector<Date>>>(pack(dates))), dates);
}

}  // namespace
}  // namespace accel
