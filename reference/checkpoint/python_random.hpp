#pragma once

#include <cstdint>

#include "reference/tree/value.hpp"

/// States of Python's and numpy's generators, which this library lacks. Checkpoints contain them so that Python's
/// Accelerate can load them. Both generators are MT19937. Thread rule: pure functions.
namespace accel::checkpoint {

/// `random.getstate()` after `random.seed(seed)`: [3, [625 numbers], null]. Source: CPython, Modules/_randommodule.c.
[[nodiscard]] Value python_random_state(std::uint64_t seed);

/// `numpy.random.get_state()` after `numpy.random.seed(seed)`: ["MT19937", [624 numbers], 624, 0, 0.0]. Uses the low 32
/// bits of the seed. Source: numpy/random/src/mt19937/mt19937.c, mt19937_seed.
[[nodiscard]] Value numpy_random_state(std::uint64_t seed);

}  // namespace accel::checkpoint
