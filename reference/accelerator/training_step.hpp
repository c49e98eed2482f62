#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "reference/accelerator/accelerator_base.hpp"
#include "reference/accelerator/captured_step.hpp"
#include "reference/prepared/prepared_model.hpp"

namespace accel {

class ElasticRun;
class PipelineLoss;
class PipelineModel;
struct PipelineBatch;

namespace parallel {
class ContextParallelScope;
struct ContextParallelOptions;
}  // namespace parallel

/// The Accelerator's methods for one training step: backward, gradient accumulation, uneven inputs, clipping, autocast.
/// Source: accelerate/accelerator.py.
class TrainingStep : public virtual AcceleratorBase {
 public:
  struct BackwardOptions {
    bool retain_graph = false;
    bool create_graph = false;
    std::optional<double> num_items =
        {};  ///< for loss_weighting exact: the loss is the mean of this many items; default: samples of the batch
  };
  /// Accumulates the gradients of loss / gradient_accumulation_steps. Collective when gradients synchronize.
  ///
  /// With loss_weighting "exact", the gradient of an accumulation window is that of the mean over all its items on all
  /// ranks, for any sizes of micro-batches. `loss` is either the mean of this micro-batch over `num_items` (samples, or
  /// unmasked tokens), where duplicates that fill a step count as items, or one loss per sample of the batch, shape
  /// (n), where duplicates are left out. Gradients are weighted when the optimizer steps, or before they are clipped,
  /// by one all-reduce of 16 bytes per window. Throws StateError if called after that for a micro-batch of the same
  /// window.
  void backward(const at::Tensor& loss, BackwardOptions options = {false, false, std::nullopt},
                std::source_location where = std::source_location::current());

  /// Forward and backward of a batch through the stages of a pipeline, micro-batch by micro-batch; see PipelineModel.
  /// Returns the loss of the batch, the mean of the micro-batches' losses weighted by their items, on every rank of the
  /// pipeline. The whole batch is one micro-batch of an accumulation window, and `backward` is not called. Replicas of
  /// the stages average their gradients at the end. Needs `<accel/pipeline.hpp>`. Throws ArgumentError for fewer rows
  /// than micro-batches and, in the first step, if the ranks of the pipeline have different batches. Collective.
  at::Tensor train_pipeline(const PreparedModel<PipelineModel>& model, const PipelineBatch& batch,
                            const PipelineLoss& loss, std::source_location where = std::source_location::current());

  /// The scope of one micro-batch of an accumulation window. Restores synchronization when it is destroyed.
  class Window {
   public:
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    Window(Window&& other) noexcept
        : restore_(std::exchange(other.restore_, {})), micro_batch_(std::move(other.micro_batch_)) {}

   private:
    friend class TrainingStep;
    Window() = default;
    std::vector<ParallelModel::Restore> restore_;
    std::shared_ptr<void> micro_batch_;
  };
  /// Begins a micro-batch and sets `sync_gradients` for it. Keep the returned scope alive until after zero_grad.
  template <typename... Modules>
  [[nodiscard]] Window accumulate(const PreparedModel<Modules>&... models) {
    return begin_micro_batch({models.parallel_model()...});
  }
  /// Disables gradient synchronization in backward while the scope lives.
  template <typename Module>
  [[nodiscard]] Window no_sync(const PreparedModel<Module>& model) {
    return suspend_sync({model.parallel_model()});
  }

  /// While the scope lives, the next backward synchronizes gradients although forward ran under no_sync.
  template <typename Module>
  [[nodiscard]] Window trigger_sync_in_backward(const PreparedModel<Module>& model) {
    return sync_next_backward(*model.parallel_model());
  }

  /// Trains in steps of a fixed number of logical ranks, which the ranks share out, so that the bits of the training do
  /// not depend on the number of ranks: see ElasticRun. Models are prepared before, and every rank holds them
  /// completely. Throws ConfigError with all problems. Needs `<accel/elastic.hpp>`. Collective.
  void elastic(const ElasticOptions& options, const std::function<void(ElasticRun& run)>& body);

  /// A model whose collectives a rank without further batches repeats.
  class Joinable {
   public:
    template <typename Module>
    Joinable(const PreparedModel<Module>& model) : model_(model.parallel_model()) {}

   private:
    friend class TrainingStep;
    std::shared_ptr<ParallelModel> model_;
  };
  struct JoinOptions {
    std::optional<bool> even_batches = {};  ///< for all prepared loaders while the body runs; default: unchanged
  };
  /// Runs `body`, a loop over loaders, on ranks that may have different numbers of batches.
  ///
  /// A rank that finishes early takes part in the gradient reductions of the others, with zeros, until all are done.
  /// Afterwards all ranks have the model of the rank that finished last. Gradients are always divided by the world
  /// size. Restores the loaders' settings on exit, also if the body throws. Has an effect only with even_batches off;
  /// throws StateError then for a sharded model. Warns if `even_batches` cannot change a loader: one of an iterable
  /// dataset, or one that dispatches.
  /// With several models, each step must run forward and backward of one model after the other, in the order of
  /// `models`. With gradient accumulation set sync_with_dataloader to false, since ranks reach their last batch at
  /// different steps. Collective.
  ///
  ///     accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] { for (auto& batch : loader) ...; });
  ///
  /// Unlike in Accelerate it works on CPUs too. Source: accelerate/accelerator.py, join_uneven_inputs;
  /// torch/distributed/algorithms/join.py.
  void join_uneven_inputs(const std::vector<Joinable>& models, JoinOptions options, const std::function<void()>& body,
                          std::source_location where = std::source_location::current());

  /// Divides tensors of a batch along their sequences over the context-parallel ranks while the scope lives: see
  /// parallel::ContextParallelScope. Warns and has no effect without cp_size above 1, as in Accelerate. Needs
  /// `<accel/parallel.hpp>`.
  [[nodiscard]] parallel::ContextParallelScope maybe_context_parallel(
      const parallel::ContextParallelOptions& options) const;

  /// Returns a function that runs `function`, a complete training step, and captures it as a CUDA graph: see
  /// CapturedStep.
  template <typename Function>
  [[nodiscard]] CapturedStep<Function> capture_step(Function function, CapturedStepOptions options = {11}) {
    return {std::move(function), detail::StepGraph(*context_, settings(), training(), options.warm_up_steps)};
  }

  /// Divides gradients by the fp16 loss scale, once per step. Does nothing in other precisions. Throws StateError if
  /// sync_gradients() is false.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  /// Scales gradients to a total norm of at most `max_norm` and returns the norm before scaling, shape []. Unscales
  /// gradients first if necessary. In a micro-batch without an optimizer step it only returns the norm so far.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0);
  /// Clamps each gradient element to [-clip_value, clip_value]. Does nothing in a micro-batch without an optimizer
  /// step. Throws StateError with fsdp_plugin or deepspeed_plugin.
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// The gradient scaler under fp16, else null.
  [[nodiscard]] GradScaler* scaler() const { return training().path->scaler(); }
  /// Enables autocast in the accelerator's precision while the scope lives. Null in full precision.
  [[nodiscard]] std::unique_ptr<Autocast> autocast() const { return autocast(settings().autocast_kwargs); }
  [[nodiscard]] std::unique_ptr<Autocast> autocast(AutocastKwargs kwargs) const;
  [[nodiscard]] bool optimizer_step_was_skipped() const;

  /// Sets a flag that check_trigger reports to all ranks, for example to stop early. Not collective.
  void set_trigger() { trigger_ = true; }
  /// Returns whether any rank has set the trigger, and resets it. Collective.
  [[nodiscard]] bool check_trigger(std::source_location where = std::source_location::current());

 private:
  [[nodiscard]] at::Tensor factor_of_loss(double num_items);
  void step_in_backward();
  // Whether stepping the original optimizer gives another result than stepping the handle that prepare returned.
  [[nodiscard]] bool requires_prepared_step() const {
    return use_distributed() || mixed_precision() == "fp16" || gradient_accumulation_steps() > 1 ||
           settings().master_weights;
  }
  void check_batch_size() const;
  void warn_of_models_without_optimizer();
  void warn_of_directly_stepped_optimizers();
  using Models = std::vector<std::shared_ptr<ParallelModel>>;
  [[nodiscard]] Window begin_micro_batch(const Models& models);
  [[nodiscard]] static Window suspend_sync(const Models& models);
  [[nodiscard]] static Window sync_next_backward(ParallelModel& model);
  void prepare_for_clipping();
  void observe_clip(const char* call, const std::vector<at::Tensor>& parameters, double limit);

  bool trigger_ = false;
  at::Tensor global_grad_norm_;  // gradient norm of the last step that DeepSpeed's plugin took in backward
};

}  // namespace accel
