#pragma once

#include <cstdint>

#include "reference/core/value.hpp"

/// The states of generators that a Python program has and this library has not, so that Python's Accelerate loads our
/// checkpoints. Both are MT19937. Thread rule: pure functions.
namespace accel::checkpoint {

/// `random.getstate()` after `random.seed(seed)`: [3, [625 numbers], null]. Source: CPython, Modules/_randommodule.c.
[[nodiscard]] Value python_random_state(std::uint64_t seed);

/// `numpy.random.get_state()` after `numpy.random.seed(seed)`: ["MT19937", [624 numbers], 624, 0, 0.0]; of the seed's
/// low 32 bits. Source: numpy/random/src/mt19937/mt19937.c, mt19937_seed.
[[nodiscard]] Value numpy_random_state(std::uint64_t seed);

}  // namespace accel::checkpoint
