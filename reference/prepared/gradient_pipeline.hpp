#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "reference/precision/grad_scaler.hpp"
#include "reference/prepared/gradient_window.hpp"
#include "reference/prepared/parallel_model.hpp"
#include "reference/state/rank_context.hpp"

namespace accel {

class ModelStages;

/// Whether the optimizer took a step. Kernels on a device may have decided it; the host waits for them when it asks.
class StepOutcome {
 public:
  explicit StepOutcome(bool was_skipped = false) : was_skipped_(was_skipped) {}
  /// `found_inf`: float32, shape [], above 0 if the step was skipped.
  explicit StepOutcome(at::Tensor found_inf) : found_inf_(std::move(found_inf)) {}

  [[nodiscard]] bool was_skipped();
  /// False if the host itself skipped the step.
  [[nodiscard]] bool may_have_stepped() const { return found_inf_.defined() || !was_skipped_; }

 private:
  bool was_skipped_ = false;
  at::Tensor found_inf_;
};

struct StepOptions {
  bool averaged = false;  ///< the program itself has averaged gradients over the ranks that prepared models do not
};

/// While it lives, the parameters of models show the values that optimizers step: shards, or float32 master weights.
class SteppedValues {
 public:
  explicit SteppedValues(const std::vector<std::shared_ptr<ParallelModel>>& models);
  /// Without `finish`, for example after an exception, models compute with the values that they had.
  ~SteppedValues();
  SteppedValues(const SteppedValues&) = delete;
  SteppedValues& operator=(const SteppedValues&) = delete;

  /// `have_changed`: models must compute with new values.
  void finish(bool have_changed);

 private:
  const std::vector<std::shared_ptr<ParallelModel>>& models_;
  bool is_finished_ = false;
};

/// The pipeline from a loss to an optimizer's step: loss weights, loss scale, unscaling, clipping norms, guards. An
/// Accelerator has one, shared by everything that it has prepared.
///
/// Thread rule: the rank's thread.
class GradientPipeline {
 public:
  /// `ranks_per_batch`: the number of ranks that share each batch.
  GradientPipeline(RankContext& context, const AcceleratorOptions& options, int ranks_per_batch);

  /// Adds parameters whose gradients are weighted with loss_weighting "exact".
  void add_parameters(std::vector<at::Tensor> parameters);
  /// Adds a model that is trained. A step throws if gradients of the model should have been averaged over the ranks but
  /// were not. Sharded gradients of the model count once in norms.
  void add_model(std::shared_ptr<ParallelModel> model);
  void remove_model(const ParallelModel& model);
  /// Forgets an optimizer, whose address another one may get. Does not read it.
  void remove_optimizer(const torch::optim::Optimizer* optimizer);
  [[nodiscard]] const std::vector<std::shared_ptr<ParallelModel>>& models() const { return models_; }
  /// Whether ranks hold shards of the parameter.
  [[nodiscard]] bool is_sharded(const at::Tensor& parameter) const;
  /// Those that every rank holds completely; none of a pipeline.
  [[nodiscard]] std::vector<at::Tensor> complete_of(std::vector<at::Tensor> parameters) const;
  /// Where the optimizers' state is allocated; null: in LibTorch's memory.
  [[nodiscard]] const std::shared_ptr<sharded::MemorySource>& optimizer_memory() const { return optimizer_memory_; }
  /// Counts samples of each window from now on, for schedules with samples_per_step.
  void count_samples() { counts_samples_ = true; }
  [[nodiscard]] bool counts_samples() const { return counts_samples_; }
  /// Begins a micro-batch, which lasts as long as the result. Null if nothing is counted.
  [[nodiscard]] std::shared_ptr<void> begin_micro_batch() { return counts() ? window_.begin_micro_batch() : nullptr; }
  [[nodiscard]] GradientWindow& window() { return window_; }

  /// Rows of this rank's batch, if a loader knows them.
  struct Rows {
    std::optional<std::int64_t> all = {}, real = {};  ///< real: without duplicates, which come last
  };
  /// Returns the value on which to call backward: `loss` weighted, and scaled for fp16.
  at::Tensor scaled_loss(const at::Tensor& loss, std::optional<double> num_items, Rows rows);
  /// Ends a window after its last backward: weights its gradients and counts its samples. Does nothing if the window
  /// has ended already. Collective if anything is counted.
  void finish_window();
  /// Takes part in finish_window() of the others, on a rank without further batches.
  void shadow_window();

  /// The gradient scaler, null without fp16. Performs a pending update of the scale.
  GradScaler* scaler();
  void unscale(torch::optim::Optimizer& optimizer);
  /// Prepares an optimizer's gradients for clipping: unscales them if that has not been done since the last update, and
  /// stores their norm for the guard. Collective if they are sharded.
  void before_clipping(torch::optim::Optimizer& optimizer);
  /// Evaluates the model again and returns the rank's loss. An optimizer such as LBFGS calls it several times per step,
  /// and gets the mean of the ranks' losses, so that all ranks call it equally often.
  using LossClosure = std::function<at::Tensor()>;
  /// Steps the optimizer unless infinite gradients or the guard prevent it.
  ///
  /// Throws StateError for a closure together with something that acts between backward and step (loss scale, exact
  /// weights, shards); if a model's parameters are not those that were prepared; if no loss was passed to `scaled_loss`
  /// although losses are weighted; and, unless `options` allow it, if gradients were not averaged over the ranks:
  /// forward bypassed the prepared model, the program wrote them, or the parameter belongs to no added model.
  StepOutcome step(torch::optim::Optimizer& optimizer, const LossClosure& closure = {}, StepOptions options = {});
  /// Recreates the state that the optimizer has had since its construction, after its parameters became shards.
  void restart(torch::optim::Optimizer& optimizer);
  /// Returns the norm of all gradients of `parameters` as one vector, shape []. Collective if they are sharded.
  [[nodiscard]] at::Tensor norm(const std::vector<at::Tensor>& parameters, double norm_type) const;
  at::Tensor clip_norm(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type);
  /// Divides the norm of scaled gradients by the loss scale.
  [[nodiscard]] at::Tensor unscaled(const at::Tensor& norm);
  /// State that must be copied from one rank to all if ranks took different numbers of steps.
  std::vector<at::Tensor> shared_state();

 private:
  [[nodiscard]] bool counts() const { return is_exact_ || counts_samples_; }
  at::Tensor weighted(const at::Tensor& loss, std::optional<double> num_items, Rows rows);
  [[nodiscard]] bool guard_rejects(torch::optim::Optimizer& optimizer);
  [[nodiscard]] bool has_sharded_models() const;
  [[nodiscard]] bool has_divided_layers() const;
  [[nodiscard]] const DividedParameter* division_of(const at::Tensor& parameter) const;
  [[nodiscard]] const ModelStages* stages() const;
  [[nodiscard]] std::pair<std::size_t, bool> place_in_stages(const at::Tensor& parameter) const;
  [[nodiscard]] at::Tensor norm_of_stages(const std::vector<at::Tensor>& parameters, double norm_type) const;
  [[nodiscard]] at::Tensor norm_of_rank(const std::vector<at::Tensor>& parameters, double norm_type) const;
  [[nodiscard]] at::Tensor norm_of_own_parts(const std::vector<at::Tensor>& parameters, double norm_type) const;
  [[nodiscard]] bool accounts_for(const at::Tensor& parameter) const;
  StepOutcome step_values(torch::optim::Optimizer& optimizer, const LossClosure& closure);
  StepOutcome try_step(torch::optim::Optimizer& optimizer, const LossClosure& closure);
  [[nodiscard]] ProgramObserver::Update observed(torch::optim::Optimizer& optimizer) const;
  StepOutcome step_unless_infinite(torch::optim::Optimizer& optimizer);
  [[nodiscard]] at::Tensor common_loss(const at::Tensor& loss) const;
  void check_averaged(const torch::optim::Optimizer& optimizer, StepOptions options);
  void check_loss_was_weighted(const torch::optim::Optimizer& optimizer);
  void check_belongs_to_models(const torch::optim::Optimizer& optimizer);

  RankContext* context_;
  GradientGuard guard_;
  double clipping_norm_ = 0;                                                    // 0: steps do not clip
  std::map<const torch::optim::Optimizer*, at::Tensor> norms_before_clipping_;  // since the last backward
  bool is_exact_, counts_samples_ = false;
  int ranks_per_batch_;
  GradientWindow window_;
  std::vector<at::Tensor> parameters_;
  std::unique_ptr<GradScaler> scaler_;
  std::vector<std::shared_ptr<ParallelModel>> models_;
  std::map<const torch::optim::Optimizer*, std::size_t> num_gradients_looked_at_;
  bool has_scaled_loss_ = false;
  std::shared_ptr<sharded::MemorySource> optimizer_memory_;
  std::optional<at::ScalarType> norm_dtype_;  // set if gradients have a lower precision than the values they change
  // Several optimizers may step in one iteration and must use the same loss scale. So the update is deferred to the
  // next iteration.
  bool scale_update_is_due_ = false;
};

}  // namespace accel
