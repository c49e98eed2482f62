#include "reference/accelerator/training_step.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Type.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "reference/accelerator/metric_rows.hpp"
#include "reference/context_parallel/context_parallel_scope.hpp"
#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/clip.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

parallel::ContextParallelScope TrainingStep::maybe_context_parallel(
    const parallel::ContextParallelOptions& options) const {
  return parallel::maybe_context_parallel(mesh(), options);
}

bool TrainingStep::optimizer_step_was_skipped() const {
  return std::any_of(training().optimizers.begin(), training().optimizers.end(),
                     [](const auto& optimizer) { return optimizer.step_was_skipped(); });
}

std::unique_ptr<Autocast> TrainingStep::autocast(AutocastKwargs kwargs) const {
  const auto options = autocast_options(kwargs);
  return options ? std::make_unique<Autocast>(*options) : nullptr;
}

void TrainingStep::backward(const at::Tensor& loss, BackwardOptions options, std::source_location where) {
  const CallSite site(where);
  check_state(
      loss.defined() && loss.requires_grad(),
      "backward: the loss does not depend on a parameter that requires gradients; expected a loss that the model "
      "has computed with gradients enabled. Tensors of detach(), gather, gather_for_metrics and reduce have no "
      "gradients; in a loss, use accelerator.gather(x, {{.with_gradients = true}})");
  const PhaseScope phase(context_->listener.get(), "backward");
  if (context_->listener) context_->listener->begin_backward(loss);
  check_batch_size();
  warn_of_models_without_optimizer();
  warn_of_directly_stepped_optimizers();
  const auto& state = context_->gradient_state;
  // Duplicates that even_batches appends are excluded from per-sample losses, hence the two counts of rows.
  const auto scaled = training().path->scaled_loss(
      loss, options.num_items, {.all = state.num_rows(), .real = num_real_rows(state, data_parallel())});
  try {
    torch::autograd::backward(std::vector<at::Tensor>{scaled}, std::vector<at::Tensor>{}, options.retain_graph,
                              options.create_graph);
  } catch (const c10::Error& error) {
    for (const auto& model : training().models) model->explain_backward(error);
    throw;
  }
  if (plugin().steps_in_backward && sync_gradients()) step_in_backward();
}

// Only loaders whose batches are trained count: those of an evaluation may have other batches.
void TrainingStep::check_batch_size() const {
  const std::optional<std::int64_t> expected = plugin().batch_sizes.micro;
  const auto found = context_->gradient_state.batch_size();
  check_config(
      !expected || !found || *expected == *found,
      "{}: batches of {} per rank are expected (train_micro_batch_size_per_gpu, given or derived from "
      "train_batch_size), but this backward pass trains a loader with batches of {}; set the loader's batch_size "
      "to {}, or the key to {} or \"auto\"",
      deepspeed_file().value_or(""), expected.value_or(0), found.value_or(0), expected.value_or(0), found.value_or(0));
}

// An unprepared optimizer steps on scaled gradients under fp16 and in every micro-batch of a window. The check runs in
// the first backward after a model is prepared, since its optimizer may be prepared after it.
void TrainingStep::warn_of_models_without_optimizer() {
  auto& num_sought = training().num_models_checked_for_optimizer;
  for (; num_sought < training().models.size(); ++num_sought) {
    const auto& model = *training().models[num_sought];
    std::vector<at::Tensor> trained;
    for (const auto& parameter : model.module()->parameters()) {
      if (parameter.requires_grad()) trained.push_back(parameter);
    }
    const bool has_optimizer = std::any_of(training().optimizers.begin(), training().optimizers.end(),
                                           [&](const auto& optimizer) { return optimizer.steps_any_of(trained); });
    if (!model.options().is_trained || trained.empty() || has_optimizer || !requires_prepared_step() ||
        !is_main_process())
      continue;
    const auto& object = *model.module();
    warn_once(
        *context_,
        fmt::format("model {} ({}) is prepared, but no prepared optimizer has its parameters; pass the optimizer to "
                    "prepare too, and step the one that prepare returns",
                    num_sought, c10::demangle(typeid(object).name())));
  }
}

// Stepping the original optimizer instead of the handle takes a step in every micro-batch, on scaled gradients, and
// even if they were not averaged over the ranks. It is noticed by parameters that change without a call of the handle.
void TrainingStep::warn_of_directly_stepped_optimizers() {
  const bool is_known = std::any_of(training().optimizers.begin(), training().optimizers.end(),
                                    [](const auto& optimizer) { return optimizer.was_called(); });
  if (is_known || !requires_prepared_step() || shards() || !is_main_process()) return;
  for (std::size_t index = 0; index < training().optimizers.size(); ++index) {
    if (!training().optimizers[index].was_stepped_directly()) continue;
    warn_once(
        *context_,
        fmt::format("the parameters of prepared optimizer {} change, but step() of the handle that prepare returned "
                    "was never called; step the handle, not the optimizer that was passed to prepare",
                    index));
  }
}

// DeepSpeed steps inside accelerator.backward, and optimizer.step() of the program does nothing. The norm is computed
// also without clipping, because clip_grad_norm_ returns it afterwards. Source: accelerate/utils/deepspeed.py,
// DeepSpeedEngineWrapper.backward.
void TrainingStep::step_in_backward() {
  for (auto& optimizer : training().optimizers) {
    const auto parameters = optim::parameters_of(optimizer.optimizer());
    if (plugin().gradient_clipping) prepare_for_clipping();
    global_grad_norm_ = plugin().gradient_clipping
                            ? training().path->clip_norm(parameters, *plugin().gradient_clipping, /*norm_type=*/2.0)
                            : training().path->unscaled(training().path->norm(parameters, /*norm_type=*/2.0));
    optimizer.take_step();
  }
  for (auto& scheduler : training().schedulers) scheduler.take_step();
}

TrainingStep::Window::~Window() {
  for (const auto& restore : restore_) restore();
}

TrainingStep::Window TrainingStep::suspend_sync(const Models& models) {
  Window window;
  for (const auto& model : models) {
    if (auto restore = model->override_sync(GradientSync::Override::kSuspended))
      window.restore_.push_back(std::move(restore));
  }
  return window;
}

TrainingStep::Window TrainingStep::sync_next_backward(ParallelModel& model) {
  Window window;
  if (auto restore = model.override_sync(GradientSync::Override::kNextBackward))
    window.restore_.push_back(std::move(restore));
  return window;
}

// Source: accelerate/accelerator.py, _do_sync and accumulate. The last batch of a loader always synchronizes, so that
// no gradients are left over at the end of an epoch, and restarts the count.
TrainingStep::Window TrainingStep::begin_micro_batch(const Models& models) {
  auto& state = context_->gradient_state;
  auto micro_batch = training().path->begin_micro_batch();
  if (state.plugin.sync_with_dataloader && state.end_of_dataloader()) {
    training().step = 0;
    state.sync_gradients = true;
  } else {
    ++training().step;
    state.sync_gradients = training().step % gradient_accumulation_steps() == 0;
  }
  // A group of one does not suspend, as in Accelerate: a communication hook that rounds still applies to every
  // backward.
  const bool communicate = state.sync_gradients || !use_distributed() || state.plugin.sync_each_batch;
  auto window = communicate ? Window() : suspend_sync(models);
  window.micro_batch_ = std::move(micro_batch);
  return window;
}

at::Tensor TrainingStep::clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type) {
  if (plugin().steps_in_backward)
    return global_grad_norm_.defined() ? global_grad_norm_ : at::zeros({});  // backward has clipped
  // Clipping gradients that still accumulate would clip the first micro-batches twice.
  if (!sync_gradients()) return training().path->unscaled(training().path->norm(parameters, norm_type));
  prepare_for_clipping();
  observe_clip("clip_grad_norm_", parameters, max_norm);
  return training().path->clip_norm(parameters, max_norm, norm_type);
}

void TrainingStep::observe_clip(const char* call, const std::vector<at::Tensor>& parameters, double limit) {
  if (context_->program_observer)
    context_->program_observer->clip(call, training().path->complete_of(parameters), limit);
}

// Exact loss weights are applied first: they change the norm.
void TrainingStep::prepare_for_clipping() {
  training().path->finish_window();
  for (const auto& optimizer : training().optimizers) training().path->before_clipping(optimizer.optimizer());
}

void TrainingStep::unscale_gradients() {
  for (const auto& optimizer : training().optimizers) unscale_gradients(optimizer);
}

void TrainingStep::unscale_gradients(const AcceleratedOptimizer& optimizer) {
  check_state(sync_gradients() || !training().path->scaler(),
              "unscale_gradients: gradients are not synchronized in this micro-batch; call it only if sync_gradients() "
              "is true");
  training().path->finish_window();
  training().path->unscale(optimizer.optimizer());
}

void TrainingStep::clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value) {
  check_state(!shards() && !plugin().steps_in_backward,
              "clip_grad_value_: does not support fsdp_plugin or deepspeed_plugin, as in Accelerate; use "
              "clip_grad_norm_");
  if (!sync_gradients()) return;
  prepare_for_clipping();
  observe_clip("clip_grad_value_", parameters, clip_value);
  optim::clip_grad_value(parameters, clip_value);
}

bool TrainingStep::check_trigger(std::source_location where) {
  // A sum, not a maximum, as in accelerate/accelerator.py, check_trigger.
  auto flag = at::full({}, trigger_ ? 1 : 0, at::kLong);
  context_->world.all_reduce(flag, ReduceOp::kSum, where).wait();
  const bool is_set = flag.item<std::int64_t>() >= 1;
  if (is_set) trigger_ = false;
  return is_set;
}

}  // namespace accel
