#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

/// Tensors of multiples of 1/4 with few bits. Sums of their products are exact, so results do not depend on the order
/// of additions and different divisions of the work must agree in every bit.
namespace accel::testing {

/// Multiples of 1/4 in [-limit / 4, limit / 4].
inline at::Tensor dyadic(const std::vector<std::int64_t>& sizes, at::Generator generator, std::int64_t limit = 4) {
  return at::randint(-limit, limit + 1, sizes, generator, at::TensorOptions(at::kDouble)) / 4;
}

}  // namespace accel::testing
