#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>
#include <vector>

/// Returns the batches of a pass over a loader of integers, as plain numbers.
namespace accel::testing {

using Batches = std::vector<std::vector<std::int64_t>>;

inline std::vector<std::int64_t> values_of(const at::Tensor& tensor) {
  const auto dense = tensor.contiguous();
  return {dense.const_data_ptr<std::int64_t>(), dense.const_data_ptr<std::int64_t>() + dense.numel()};
}

/// Works for loaders whose batches are a tensor or a tuple of one.
template <typename Loader>
Batches read_pass(Loader&& loader) {
  Batches batches;
  for (auto& batch : loader) {
    if constexpr (requires { std::get<0>(batch); }) {
      batches.push_back(values_of(std::get<0>(batch)));
    } else {
      batches.push_back(values_of(batch));
    }
  }
  return batches;
}

}  // namespace accel::testing
