#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <optional>

#include "reference/tree/tree.hpp"

namespace accel {

/// Runs eligible operations in a lower precision while it lives; scopes nest. The cache of cast weights is per thread,
/// and is cleared when the outermost scope ends.
///
///     { const Autocast scope({.device = c10::kCPU, .dtype = at::kBFloat16}); loss = model(x); }
///
/// Thread rule: the thread that created it. Source: torch/amp/autocast_mode.py.
class Autocast {
 public:
  struct Options {
    c10::DeviceType device = c10::kCPU;
    at::ScalarType dtype = at::kBFloat16;
    bool enabled = true;
    std::optional<bool> cache_enabled = {};  ///< whether cast weights are cached; absent: unchanged
  };

  explicit Autocast(Options options);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  c10::DeviceType device_;
  bool previous_enabled_, previous_cache_;
  at::ScalarType previous_dtype_;
};

/// Converts float16 and bfloat16 tensors to float32; returns others unchanged. Source: accelerate/utils/operations.py.
at::Tensor convert_to_fp32(const at::Tensor& tensor);

template <Tree T>
std::remove_cvref_t<T> convert_tree_to_fp32(const T& tree) {
  return map_tensors(tree, [](const at::Tensor& tensor) { return convert_to_fp32(tensor); });
}

}  // namespace accel
