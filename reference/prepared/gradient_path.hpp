#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/precision/grad_scaler.hpp"
#include "reference/prepared/gradient_window.hpp"
#include "reference/prepared/parallel_model.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {

/// The way of gradients from a loss to an optimizer's step: weights, loss scale, unscaling, guards. One for an
/// Accelerator and all that it has prepared.
///
/// Thread rule: the rank's thread.
class GradientPath {
 public:
  /// `ranks_per_batch`: how many ranks share each batch.
  GradientPath(RankContext& context, const AcceleratorOptions& options, int ranks_per_batch);

  /// Gradients of these are weighted exactly, if asked for.
  void add_parameters(std::vector<at::Tensor> parameters);
  /// A model that is trained: a step is refused on its gradients if they should have been averaged over the ranks and
  /// were not, and gradients that are sharded count once in norms.
  void add_model(std::shared_ptr<ParallelModel> model);
  /// Where the optimizers' state is made; null: where LibTorch's tensors are.
  [[nodiscard]] const std::shared_ptr<sharded::MemorySource>& optimizer_memory() const { return optimizer_memory_; }
  void count_samples() { counts_samples_ = true; }
  /// Null if nothing is counted.
  [[nodiscard]] std::shared_ptr<void> begin_micro_batch() { return counts() ? window_.begin_micro_batch() : nullptr; }
  [[nodiscard]] GradientWindow& window() { return window_; }

  /// Rows of this rank's batch, if a loader tells.
  struct Rows {
    std::optional<std::int64_t> all = {}, real = {};  ///< real: without duplicates, which come last
  };
  /// What backward runs from: `loss` weighted, and scaled for fp16.
  at::Tensor scaled_loss(const at::Tensor& loss, std::optional<double> num_items, Rows rows);
  /// Behind the last backward of a window, once: weights its gradients, counts its samples. Collective if there is
  /// something to count.
  void finish_window();
  /// The same for a rank that has no more batches.
  void shadow_window();

  /// Null without fp16. An update that is due is made.
  GradScaler* scaler();
  void unscale(torch::optim::Optimizer& optimizer);
  /// Before an optimizer's gradients are clipped: unscales them, unless that was done since the last update, and keeps
  /// their norm for the guard. Collective if they are divided over ranks.
  void before_clipping(torch::optim::Optimizer& optimizer);
  /// Evaluates the model anew and returns the loss, as often as an optimizer such as LBFGS asks.
  using LossClosure = std::function<at::Tensor()>;
  /// Steps unless the gradients' infinities or the guard forbid; returns whether it did. Throws StateError if there is
  /// a closure and something that acts between backward and step: a loss scale, exact weights, shards; if gradients
  /// were not averaged over the ranks, because forward bypassed the prepared model; and if no loss was given to
  /// `scaled_loss` although it scales or weights losses. Warns if a parameter with a gradient belongs to no model that
  /// was added.
  bool step(torch::optim::Optimizer& optimizer, const LossClosure& closure = {});
  /// Makes the state that the optimizer has from its construction on anew, for parameters that are shards now.
  void restart(torch::optim::Optimizer& optimizer);
  /// The norm of all gradients of `parameters` as one vector, shape []: collective if they are divided over ranks.
  [[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& parameters, double norm_type) const;
  at::Tensor clip_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type);
  /// A norm of gradients that may be scaled still, without the scale.
  [[nodiscard]] at::Tensor unscaled(const at::Tensor& norm);
  /// What ranks that made different numbers of steps must take from one of them.
  std::vector<at::Tensor> shared_state();

 private:
  [[nodiscard]] bool counts() const { return is_exact_ || counts_samples_; }
  at::Tensor weighted(const at::Tensor& loss, std::optional<double> num_items, Rows rows);
  [[nodiscard]] bool guard_forbids(torch::optim::Optimizer& optimizer);
  [[nodiscard]] bool has_sharded_models() const;
  [[nodiscard]] bool is_sharded(const at::Tensor& parameter) const;
  [[nodiscard]] bool accounts_for(const at::Tensor& parameter) const;
  bool try_step(torch::optim::Optimizer& optimizer, const LossClosure& closure);
  void check_reduced(const torch::optim::Optimizer& optimizer) const;
  void check_loss_came_here(const torch::optim::Optimizer& optimizer);
  void warn_of_parameters_of_no_model(const torch::optim::Optimizer& optimizer);

  RankContext* context_;
  GradientGuard guard_;
  std::map<const torch::optim::Optimizer*, at::Tensor> norms_before_clipping_;  // since the last backward
  bool is_exact_, counts_samples_ = false;
  int ranks_per_batch_;
  GradientWindow window_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<GradScaler> scaler_;
  std::vector<std::shared_ptr<ParallelModel>> models_;
  std::map<const torch::optim::Optimizer*, std::size_t> num_gradients_looked_at_;
  bool has_had_a_loss_ = false;
  std::shared_ptr<sharded::MemorySource> optimizer_memory_;
  // Optimizers that step in turn belong to one iteration: the scale changes when the next begins, not between them.
  bool scale_update_is_due_ = false;
};

}  // namespace accel
