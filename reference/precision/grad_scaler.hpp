#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/tree/value.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accel {

/// Scales losses so that gradients of float16 operations do not underflow, and adapts the scale: a step with an
/// infinity or NaN is skipped and lowers the scale; a number of consecutive finite steps raises it.
///
///     accel::GradScaler scaler({.init_scale = 1024});
///     scaler.scale(loss).backward();
///     scaler.unscale_(optimizer);             // optional: to clip or inspect gradients
///     const bool stepped = scaler.step(optimizer);
///     scaler.update();
///
/// An Accelerator with fp16 owns one, on every device, and makes all these calls. Gradients are float32; one kernel per
/// device and dtype checks and unscales them. Thread rule: the rank's thread. Source: torch/amp/grad_scaler.py, whose
/// values it reproduces.
class GradScaler {
 public:
  /// Throws ArgumentError with all problems of the options.
  explicit GradScaler(GradScalerKwargs options = {});

  /// Returns `outputs` times the scale; unchanged if the scaler is disabled.
  at::Tensor scale(const at::Tensor& outputs);
  std::vector<at::Tensor> scale(const std::vector<at::Tensor>& outputs);
  /// Divides the optimizer's gradients by the scale, and records whether all are finite. Throws StateError if that was
  /// already done since the last update, or if nothing was scaled; ArgumentError for float16 gradients.
  void unscale_(torch::optim::Optimizer& optimizer);
  /// Call after unscale_ where ranks hold different parts of the gradients: an infinity on one rank then counts on all.
  /// Collective.
  void share_found_inf(torch::optim::Optimizer& optimizer, const Group& group);
  /// Unscales unless that was done, then steps if all gradients are finite. Returns whether it stepped. Throws
  /// StateError if the optimizer was already stepped since the last update, or has no gradient.
  bool step(torch::optim::Optimizer& optimizer);
  /// For an optimizer that its caller steps, and whose kernels skip the step if they find an infinity: like `step`, but
  /// does not step and does not wait for the device. Returns one float32 scalar per device of the gradients, above 0 if
  /// they contain an infinity or NaN.
  std::vector<at::Tensor> begin_step(torch::optim::Optimizer& optimizer);
  /// Sets the scale of the next iteration from what the optimizers found in this one, or to `new_scale`. Throws
  /// StateError if no optimizer was checked.
  void update(std::optional<double> new_scale = std::nullopt);
  /// Drops what was found in an optimizer since the last update. Does not read it.
  void forget(const torch::optim::Optimizer* optimizer) { optimizers_.erase(optimizer); }

  /// Since the last update: whether gradients were unscaled, and whether the optimizer was stepped (or skipped).
  [[nodiscard]] bool was_unscaled(const torch::optim::Optimizer& optimizer) const;
  [[nodiscard]] bool was_stepped(const torch::optim::Optimizer& optimizer) const;

  /// 1 if the scaler is disabled. Synchronizes with the device.
  [[nodiscard]] double get_scale() const;
  [[nodiscard]] double get_growth_factor() const { return options_.growth_factor; }
  [[nodiscard]] double get_backoff_factor() const { return options_.backoff_factor; }
  [[nodiscard]] int get_growth_interval() const { return options_.growth_interval; }
  void set_growth_factor(double factor) { options_.growth_factor = factor; }
  void set_backoff_factor(double factor) { options_.backoff_factor = factor; }
  void set_growth_interval(int interval) { options_.growth_interval = interval; }
  [[nodiscard]] bool is_enabled() const { return options_.enabled; }

  /// Python's keys: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; empty if disabled.
  [[nodiscard]] Value state_dict() const;
  /// Throws CheckpointError with all problems; the scaler is unchanged then.
  void load_state_dict(const Value& state);
  /// The scale (float32, []) and the number of consecutive finite steps (int32, []), for ranks to share; created on
  /// `device` if they do not exist yet.
  std::vector<at::Tensor> state_tensors(c10::Device device);

 private:
  enum class Stage { kReady, kUnscaled, kStepped };
  struct OptimizerState {
    Stage stage = Stage::kReady;
    std::vector<at::Tensor> found_inf = {};  // one per device: 1 if a gradient is infinite or NaN
  };
  void make_tensors(c10::Device device);
  void check_scaled(const char* call) const;
  [[nodiscard]] Stage stage_of(const torch::optim::Optimizer& optimizer) const;
  std::vector<at::Tensor> unscale_gradients(torch::optim::Optimizer& optimizer);
  [[nodiscard]] std::int64_t growth_tracker() const;

  GradScalerKwargs options_;
  int init_growth_tracker_ = 0;
  at::Tensor scale_, growth_tracker_;                                    // created on the device of the first use
  std::map<const torch::optim::Optimizer*, OptimizerState> optimizers_;  // since the last update
};

}  // namespace accel
