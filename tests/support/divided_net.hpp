#pragma once

#include <accel/accel.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "reference/tensor_parallel/layers.hpp"
#include "reference/tensor_parallel/operators.hpp"
#include "tests/support/cut_values.hpp"
#include "tests/support/dyadic.hpp"
#include "tests/support/torch.hpp"

namespace accel::testing {

inline constexpr std::int64_t kWidth = 3, kInner = 8;

/// A column-parallel and a row-parallel layer, and a parameter that every rank holds. float64.
struct DividedNet : torch::nn::Module {
  explicit DividedNet(const DeviceMesh& mesh) : group(mesh["tp"]) {
    expansion = register_module("expansion", parallel::ColumnParallelLinear(
                                                 parallel::ParallelLinearOptions{.in = kWidth, .out = kInner}, group));
    projection = register_module(
        "projection", parallel::RowParallelLinear(parallel::ParallelLinearOptions{.in = kInner, .out = kWidth}, group));
    scale = register_parameter("scale", at::ones({kWidth}));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& values) {
    const auto hidden = parallel::elementwise(expansion->forward(parallel::copy({values}, group)),
                                              [](const at::Tensor& x) { return x.relu(); });
    return projection->forward(hidden).local * scale;
  }
  Group group;
  parallel::ColumnParallelLinear expansion{nullptr};
  parallel::RowParallelLinear projection{nullptr};
  at::Tensor scale;
};

/// Dyadic values, equal in every layout.
inline void fill(DividedNet& net, std::uint64_t seed = 5) {
  auto generator = make_generator(seed);
  fill_with_parts(
      net, [&](const std::string&, const std::vector<std::int64_t>& sizes) { return dyadic(sizes, generator, 2); });
}

}  // namespace accel::testing
