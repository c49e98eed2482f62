// States of Python's random and of NumPy, which checkpoints contain for Python's sake. We write what their seeds
// would give.
#include "reference/checkpoint/python_random.hpp"

#include <gtest/gtest.h>

namespace accel::checkpoint {
namespace {

// A word of the generator's state in Python's form.
std::int64_t word(const Value& state, std::size_t index) {
  return state.as<Value::List>()[1].as<Value::List>()[index].as<std::int64_t>();
}

// The numbers come from `random.seed(42); random.getstate()`.
TEST(PythonRandomTest, EqualsPythonsSeed) {
  const auto state = python_random_state(42);
  EXPECT_EQ(state.as<Value::List>()[0].as<std::int64_t>(), 3);
  EXPECT_EQ(word(state, 0), 2147483648);
  EXPECT_EQ(word(state, 623), 3831079317);
  EXPECT_EQ(word(state, 624), 624);
  EXPECT_EQ(word(python_random_state(std::uint64_t{1} << 40 | 5), 623), 2187275131);
}

// The numbers come from `numpy.random.seed(42); numpy.random.get_state()`.
TEST(PythonRandomTest, EqualsNumpysSeed) {
  const auto state = numpy_random_state(42);
  EXPECT_EQ(word(state, 0), 42);
  EXPECT_EQ(word(state, 623), 26719530);
}

}  // namespace
}  // namespace accel::checkpoint
