// Philox is the counter-based generator that fault plans draw from. A wrong round would still look random, so only
// published vectors can verify it.
#include "sim/faults/fault_plan.hpp"

#include <gtest/gtest.h>

namespace accel::sim {
namespace {

using Block = std::array<std::uint32_t, 4>;

// The test vectors that Random123 ships (kat_vectors, "philox4x32 10").
TEST(PhiloxTest, ThePublishedVectorsComeOut) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace accel::sim
