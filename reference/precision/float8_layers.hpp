#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "reference/config/plugins/float8.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

/// Computes input * weight^T + bias, with the matrix products of forward and backward in float8.
///
/// Shapes: input (..., I), weight (O, I), bias (O) or undefined -> (..., O). Dtype: the input's; under autocast, that
/// of autocast, to which the input is cast first on GPUs. Gradients have any dtype that autograd accepts for the
/// parameters. Tensorwise scales work on every device. Axiswise scales with use_fast_accum need a GPU kernel; elsewhere
/// the scales are applied after the product. Source: torchao 0.18, float8/float8_linear.py.
at::Tensor float8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                         std::shared_ptr<const Float8LinearConfig> config);

/// The Linear layers of a model that compute in float8 inside a Float8Scope. The modules themselves are unchanged:
/// outside such a scope, for example if the model is called without the Accelerator, they compute in full precision.
///
/// Throws ConfigError if this program does not export its symbols. Source: accelerate/utils/ao.py.
class Float8Layers {
 public:
  Float8Layers(const torch::nn::Module& model, const AORecipeKwargs& recipe);

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] bool contains(const torch::nn::LinearImpl& layer) const { return layers_.contains(&layer); }
  [[nodiscard]] const std::shared_ptr<const Float8LinearConfig>& config() const { return config_; }

  /// Call after a forward. Throws StateError if none of the layers has ever computed in float8.
  void check_ran() const;
  void mark_ran() const { ran_ = true; }

 private:
  std::vector<std::string> names_;
  std::unordered_set<const torch::nn::LinearImpl*> layers_;
  std::shared_ptr<const Float8LinearConfig> config_;
  mutable std::atomic<bool> ran_ = false;
};

/// While it lives, `layers` compute in float8 on this thread; null: none do. Scopes nest; the innermost applies.
class Float8Scope {
 public:
  explicit Float8Scope(std::shared_ptr<const Float8Layers> layers);
  ~Float8Scope();
  Float8Scope(const Float8Scope&) = delete;
  Float8Scope& operator=(const Float8Scope&) = delete;

  static std::shared_ptr<const Float8Layers> current();

 private:
  std::shared_ptr<const Float8Layers> previous_;
};

/// Whether `layer` currently computes in float8. torch::nn::LinearImpl::forward checks it. A derived class that hides
/// that forward must check it too, and call torch::nn::LinearImpl::forward if it is true.
bool computes_in_float8(const torch::nn::LinearImpl& layer);

}  // namespace accel
