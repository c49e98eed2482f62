#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "reference/config/float8.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

/// input * weight^T + bias, with products of forward and backward in float8.
///
/// Shapes: input (..., I), weight (O, I), bias (O) or undefined -> (..., O). Dtype: the input's; under autocast, that
/// of autocast, and on GPUs the input is cast to it first. Gradients of any dtype that autograd takes for the
/// parameters'. One scale for a whole tensor is computed anywhere; axiswise scales with use_fast_accum need a GPU's
/// kernel, and are multiplied behind the product elsewhere. Source: torchao 0.18, float8/float8_linear.py.
at::Tensor float8_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                         std::shared_ptr<const Float8LinearConfig> config);

/// The Linear layers of a model that compute in float8 inside a Float8Scope. Modules stay as they are: outside, also
/// where a model is called without the Accelerator, they compute in full precision.
///
/// Throws ConfigError if this program does not export its symbols. Source: accelerate/utils/ao.py.
class Float8Layers {
 public:
  Float8Layers(const torch::nn::Module& model, const AORecipeKwargs& recipe);

  [[nodiscard]] const std::vector<std::string>& names() const { return names_; }
  [[nodiscard]] bool contains(const torch::nn::LinearImpl& layer) const { return layers_.contains(&layer); }
  [[nodiscard]] const std::shared_ptr<const Float8LinearConfig>& config() const { return config_; }

  /// Throws StateError behind a forward, if none of them has ever computed so.
  void check_ran() const;
  void mark_ran() const { ran_ = true; }

 private:
  std::vector<std::string> names_;
  std::unordered_set<const torch::nn::LinearImpl*> layers_;
  std::shared_ptr<const Float8LinearConfig> config_;
  mutable std::atomic<bool> ran_ = false;
};

/// While it lives, `layers` compute in float8 on this thread; null: none do. Scopes nest, the innermost counts.
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

/// Whether `layer` computes in float8 now. torch::nn::LinearImpl::forward asks it; a forward that hides that one, in a
/// class of your own, asks it too, and calls torch::nn::LinearImpl::forward then.
bool computes_in_float8(const torch::nn::LinearImpl& layer);

}  // namespace accel
