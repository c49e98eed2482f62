#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>
#include <vector>

#include "reference/accelerator/accelerator_state.hpp"
#include "reference/prepared/prepared_model.hpp"

namespace accel {

/// The Accelerator's part in one step: backward, accumulation windows, uneven inputs, clipping, autocast.
/// Source: accelerate/accelerator.py.
class TrainingStep : public virtual AcceleratorState {
 public:
  struct BackwardOptions {
    bool retain_graph = false;
    bool create_graph = false;
    std::optional<double> num_items =
        {};  ///< loss_weighting exact: the loss is the mean of so many; default: the batch's samples
  };
  /// Gradients of loss / gradient_accumulation_steps. Collective when gradients synchronise.
  ///
  /// With loss_weighting "exact" the gradient of a window is that of the mean over all its items on all ranks, whatever
  /// the sizes of micro-batches: `loss` is this micro-batch's mean, over `num_items` (samples, or tokens that are not
  /// masked), in which duplicates that fill a step are items as any, or one loss for each sample of the batch, shape
  /// (n), of which they are left out. Gradients are weighted when the optimizer steps, or before they are clipped: one
  /// all-reduce of 16 bytes for each window. Throws StateError behind that, if the micro-batch belongs to a longer
  /// window.
  void backward(const at::Tensor& loss, BackwardOptions options = {false, false, std::nullopt},
                std::source_location where = std::source_location::current());

  /// One micro-batch of an accumulation window; ends with the scope. Decides `sync_gradients`.
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
  template <typename... Modules>
  [[nodiscard]] Window accumulate(const PreparedModel<Modules>&... models) {
    return begin_micro_batch({models.parallel_model()...});
  }
  /// While the scope lives, backward communicates nothing.
  template <typename Module>
  [[nodiscard]] Window no_sync(const PreparedModel<Module>& model) {
    return suspend_sync({model.parallel_model()});
  }

  /// While the scope lives, the next backward synchronises gradients of a model whose forwards were under no_sync.
  template <typename Module>
  [[nodiscard]] Window trigger_sync_in_backward(const PreparedModel<Module>& model) {
    return sync_next_backward(*model.parallel_model());
  }

  /// A model whose collectives a rank that has no more batches repeats.
  class Joinable {
   public:
    template <typename Module>
    Joinable(const PreparedModel<Module>& model) : model_(model.parallel_model()) {}

   private:
    friend class TrainingStep;
    std::shared_ptr<ParallelModel> model_;
  };
  struct JoinOptions {
    std::optional<bool> even_batches = {};  ///< of all prepared loaders, while the body runs; default: as they are
  };
  /// Runs `body`, a loop over loaders, on ranks that may have different numbers of batches: one that is done takes part
  /// in the others' gradient reductions, with zeros, until all are done; then all have the model of the rank that was
  /// last. Gradients are divided by the number of ranks, whoever takes part. Loaders are as they were behind it, also
  /// if the body throws. Only with even_batches off is there anything to join. Of several models, each runs forward and
  /// backward in turn, in the order in which they are named here. With gradient accumulation set sync_with_dataloader
  /// to false: the ranks' last batches are not the same. Collective.
  ///
  ///     accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] { for (auto& batch : loader) ...; });
  ///
  /// Source: accelerate/accelerator.py, join_uneven_inputs, which does nothing on CPUs;
  /// torch/distributed/algorithms/join.py.
  void join_uneven_inputs(const std::vector<Joinable>& models, JoinOptions options, const std::function<void()>& body,
                          std::source_location where = std::source_location::current());

  /// Divides gradients by fp16's loss scale: once for each step, and where gradients synchronise, else StateError.
  /// Nothing in other precisions.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  /// Scales gradients to a total norm of at most `max_norm`; returns the norm before, shape []. Gradients that are not
  /// yet unscaled are unscaled first. On a micro-batch that does not step it only tells the norm so far.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// The loss scale under fp16, else null.
  [[nodiscard]] GradScaler* scaler() const { return training_.path->scaler(); }
  /// Autocast in the accelerator's precision while the scope lives; nothing in full precision.
  [[nodiscard]] std::unique_ptr<Autocast> autocast() const { return autocast(options_.autocast_kwargs); }
  [[nodiscard]] std::unique_ptr<Autocast> autocast(AutocastKwargs kwargs) const;
  [[nodiscard]] bool optimizer_step_was_skipped() const;

 private:
  void step_in_backward();
  // Whether a step past the handles has another result than one by them.
  [[nodiscard]] bool handles_matter() const {
    return use_distributed() || mixed_precision_ == "fp16" || gradient_accumulation_steps() > 1;
  }
  void warn_of_models_without_optimizer();
  void warn_of_optimizers_stepped_elsewhere();
  using Models = std::vector<std::shared_ptr<ParallelModel>>;
  [[nodiscard]] Window begin_micro_batch(const Models& models);
  [[nodiscard]] static Window suspend_sync(const Models& models);
  [[nodiscard]] static Window sync_next_backward(ParallelModel& model);
  void prepare_for_clipping();

  at::Tensor global_grad_norm_;  // that DeepSpeed's step clipped last
};

}  // namespace accel
