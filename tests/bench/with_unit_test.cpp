#include "bench/with_unit.hpp"

#include <gtest/gtest.h>

namespace accel::bench {
namespace {

TEST(WithUnitTest, ValuesHaveAFittingUnit) {
  EXPECT_EQ(with_unit(1.5, "s"), "1.5 s");
  EXPECT_EQ(with_unit(0.00025, "s"), "250 us");
  EXPECT_EQ(with_unit(0, "s"), "0 s");
  EXPECT_EQ(with_unit(640'000, "bytes"), "640 kB");
}

}  // namespace
}  // namespace accel::bench
