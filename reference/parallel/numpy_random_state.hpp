#pragma once

#include <bit>
#include <cstdint>
#include <random>

namespace accel {

/// numpy.random.RandomState: a Mersenne twister with numpy's legacy seeding, which is the standard library's as well.
///
///     NumpyRandomState random(/*seed=*/0);
///     const auto seed = random.randint(1'000'000'000);
///
/// Thread rule: one thread at a time. Source: numpy/random/mtrand.pyx, randint; distributions.c, masked rejection.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  /// From 0 to `high` - 1. `high`: 2 to 2^32 - 1.
  std::uint32_t randint(std::uint32_t high) {
    const std::uint32_t largest = high - 1,
                        mask = static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(largest)) - 1);
    for (;;) {
      if (const auto value = static_cast<std::uint32_t>(engine_()) & mask; value <= largest) return value;
    }
  }

 private:
  std::mt19937 engine_;
};

}  // namespace accel
