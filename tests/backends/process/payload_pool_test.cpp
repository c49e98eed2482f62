#include "backends/process/payload_pool.hpp"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

#include <map>

#include "reference/core/errors.hpp"

namespace accel::process {
namespace {

// Pieces never overlap, lie inside the payload, and after everything was given back all of it is one piece again.
RC_GTEST_PROP(PayloadPoolTest, PiecesNeverOverlap, (const std::vector<std::pair<bool, std::uint16_t>>& steps)) {
  constexpr std::uint64_t kBytes = 1 << 20;
  PayloadPool pool(kBytes);
  std::map<std::uint64_t, std::uint64_t> taken;
  for (const auto& [takes, number] : steps) {
    const std::uint64_t amount = number % 4096;  // a hundred of them fit
    if (takes || taken.empty()) {
      const auto offset = pool.take(amount);
      const auto next = taken.lower_bound(offset);
      RC_ASSERT(offset % 64 == 0u);
      RC_ASSERT(offset + amount <= kBytes);
      const bool fits_below = next == taken.end() || offset + amount <= next->first;
      const bool fits_above = next == taken.begin() || std::prev(next)->first + std::prev(next)->second <= offset;
      RC_ASSERT(fits_below && fits_above);
      RC_ASSERT(!taken.contains(offset));
      taken[offset] = amount;
    } else {
      const auto piece = std::next(taken.begin(), amount % taken.size());
      pool.give(piece->first);
      taken.erase(piece);
    }
  }
  for (const auto& [offset, bytes] : taken) pool.give(offset);
  RC_ASSERT(pool.take(kBytes) == 0u);
}

TEST(PayloadPoolTest, AFullPayloadIsAClearError) {
  PayloadPool pool(1 << 20);
  pool.take(1 << 19);
  EXPECT_THROW(pool.take((1 << 19) + 1), CommError);
  EXPECT_EQ(pool.take(1 << 19), 1u << 19);
  EXPECT_THROW(pool.give(64), InternalError);
}

}  // namespace
}  // namespace accel::process
