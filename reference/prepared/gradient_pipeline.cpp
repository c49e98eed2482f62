// The order of operations matters and is the same for every optimizer step: finish the window (exact weights), unscale,
// compute the norm for the guard, clip, check for infinities, step, update the scale.
#include "reference/prepared/gradient_pipeline.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/optim/optimizers/clip.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/unaveraged_gradients.hpp"
#include "reference/sharded/file_memory.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// Whether the next step allocates optimizer state. Optimizers create it in their first step with a gradient, so this
// decides in which memory it is placed.
bool lacks_state(const torch::optim::Optimizer& optimizer) {
  const auto parameters = optim::parameters_of(optimizer);
  return std::any_of(parameters.begin(), parameters.end(), [&](const at::Tensor& parameter) {
    return parameter.grad().defined() && optimizer.state().count(parameter.unsafeGetTensorImpl()) == 0;
  });
}

bool is_zero(const at::Tensor& gradient) {
  const auto values = gradient.is_sparse() ? gradient.coalesce().values() : gradient;
  return values.count_nonzero().item<std::int64_t>() == 0;
}

}  // namespace

SteppedValues::SteppedValues(const std::vector<std::shared_ptr<ParallelModel>>& models) : models_(models) {
  try {
    for (const auto& model : models_) model->before_step();
  } catch (...) {
    for (const auto& model : models_) model->after_step(/*has_stepped=*/false);
    throw;
  }
}

SteppedValues::~SteppedValues() {
  if (is_finished_) return;
  for (const auto& model : models_) model->after_step(/*has_stepped=*/false);
}

void SteppedValues::finish(bool have_changed) {
  is_finished_ = true;
  for (const auto& model : models_) model->after_step(have_changed);
}

bool StepOutcome::was_skipped() {
  if (const auto found_inf = std::exchange(found_inf_, {}); found_inf.defined())
    was_skipped_ = found_inf.item<float>() > 0;
  return was_skipped_;
}

// A disabled scaler (GradScalerKwargs) still exists, so that its state is part of checkpoints, as in Python.
GradientPipeline::GradientPipeline(RankContext& context, const AcceleratorOptions& options, int ranks_per_batch)
    : context_(&context),
      guard_(options.gradient_guard),
      is_exact_(options.loss_weighting == "exact"),
      ranks_per_batch_(ranks_per_batch) {
  if (options.master_weights) norm_dtype_ = at::kFloat;
  if (options.megatron_lm_plugin) clipping_norm_ = options.megatron_lm_plugin->gradient_clipping.value_or(0);
  if (options.mixed_precision == "fp16") scaler_ = std::make_unique<GradScaler>(options.grad_scaler_kwargs);
}

void GradientPipeline::add_parameters(std::vector<at::Tensor> parameters) {
  parameters_.insert(parameters_.end(), parameters.begin(), parameters.end());
  parameters_ = unique_tensors(std::move(parameters_));  // models may share parameters; weighting twice would be wrong
}

at::Tensor GradientPipeline::scaled_loss(const at::Tensor& loss, std::optional<double> num_items, Rows rows) {
  // A new backward: the stored norms belong to the last gradients.
  norms_before_clipping_.clear();
  has_scaled_loss_ = true;
  auto scaled = weighted(loss, num_items, rows);
  return scaler() ? scaler_->scale(scaled) : scaled;
}

at::Tensor GradientPipeline::weighted(const at::Tensor& loss, std::optional<double> num_items, Rows rows) {
  const auto batch = context_->gradient_state.batch();
  if (!is_exact_) {
    check_argument(!num_items, "backward: num_items requires loss_weighting: exact");
    if (counts()) window_.add(0, static_cast<double>(rows.real.value_or(0)), batch);
    const int steps = context_->gradient_state.plugin.num_steps.value_or(1);
    return steps == 1 ? loss : loss.div(steps);
  }
  const auto samples = static_cast<double>(rows.real.value_or(0));
  if (loss.dim() > 0) {
    check_argument(!num_items && loss.dim() == 1 && rows.all == loss.size(0),
                   "backward, loss_weighting exact: got losses of {} dimensions and {} rows for a batch of {} samples; "
                   "expected one loss per sample, without num_items, inside a loop over a prepared loader",
                   loss.dim(), loss.size(0), rows.all ? fmt::format("{}", *rows.all) : "unknown");
    window_.add(samples, samples, batch);
    // Duplicates come last in the batch, so narrow() removes exactly them.
    return loss.narrow(0, 0, *rows.real).sum() * window_.loss_scale(1);
  }
  check_argument(num_items || rows.all,
                 "backward, loss_weighting exact: the number of items of this loss is unknown outside a loop over a "
                 "prepared loader; pass {{.num_items = n}}");
  const auto items = num_items.value_or(static_cast<double>(rows.all.value_or(0)));
  check_argument(std::isfinite(items) && items >= 0, "backward: num_items: expected 0 or more, got {}", items);
  window_.add(items, samples, batch);
  return loss * window_.loss_scale(items);
}

void GradientPipeline::finish_window() {
  auto& state = context_->gradient_state;
  if (!counts() || window_.is_empty() || !state.sync_gradients) return;
  const auto total = window_.finish(context_->world);
  // Ranks that share a batch have each counted its samples.
  state.num_samples += std::llround(total.samples / ranks_per_batch_);
  if (!is_exact_ || total.gradient_scale == 1) return;
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : parameters_) {
    if (parameter.grad().defined()) gradients.push_back(parameter.grad());
  }
  if (!gradients.empty()) at::_foreach_mul_(gradients, total.gradient_scale);
}

void GradientPipeline::shadow_window() {
  if (!counts()) return;
  // This rank's gradients do not count, but the others expect it in the all-reduce.
  window_.drop();
  window_.finish(context_->world);
}

// Every access goes through here, so that nobody sees the scale before a pending update.
GradScaler* GradientPipeline::scaler() {
  if (scaler_ && scale_update_is_due_) {
    scaler_->update();
    scale_update_is_due_ = false;
  }
  return scaler_.get();
}

void GradientPipeline::unscale(torch::optim::Optimizer& optimizer) {
  if (!scaler_) return;
  scaler_->unscale_(optimizer);
  // A rank sees infinities only in its own parts; all ranks must skip the step together.
  if (has_sharded_models() || has_divided_layers() || stages() != nullptr)
    scaler_->share_found_inf(optimizer, context_->world);
  scale_update_is_due_ = true;
}

// Clipping unscales the gradients of all optimizers. One that has already stepped since the last backward is left out,
// since unscaling it again would throw.
void GradientPipeline::before_clipping(torch::optim::Optimizer& optimizer) {
  if (scaler_ && !scaler_->was_unscaled(optimizer) && !scaler_->was_stepped(optimizer)) unscale(optimizer);
  if (guard_.skip_norm_above)
    norms_before_clipping_.try_emplace(&optimizer, norm(optim::parameters_of(optimizer), /*norm_type=*/2.0));
}

bool GradientPipeline::has_sharded_models() const {
  return std::any_of(models_.begin(), models_.end(), [](const auto& model) { return model->is_sharded(); });
}

void GradientPipeline::add_model(std::shared_ptr<ParallelModel> model) {
  if (!optimizer_memory_) optimizer_memory_ = model->make_optimizer_memory();
  models_.push_back(std::move(model));
}

void GradientPipeline::remove_model(const ParallelModel& model) {
  std::erase_if(models_, [&](const auto& own) { return own.get() == &model; });
  num_gradients_looked_at_.clear();
}

void GradientPipeline::remove_optimizer(const torch::optim::Optimizer* optimizer) {
  norms_before_clipping_.erase(optimizer);
  num_gradients_looked_at_.erase(optimizer);
  if (auto* own_scaler = scaler()) own_scaler->forget(optimizer);  // after the update that its last step made due
}

StepOutcome GradientPipeline::step(torch::optim::Optimizer& optimizer, const LossClosure& closure,
                                   StepOptions options) {
  // Only LBFGS needs a closure. It calls the model several times per step, while scale, weights and shards are handled
  // once per step.
  check_state(
      !closure || (!(scaler_ && scaler_->is_enabled()) && !is_exact_ && !has_sharded_models() && !norm_dtype_ &&
                   clipping_norm_ == 0),
      "step: a closure is unsupported with fp16, loss_weighting: exact, master_weights, megatron_lm_plugin and sharded "
      "models, which must act between backward and step; call step without a closure");
  const auto check = [&] {
    check_loss_was_weighted(optimizer);
    check_averaged(optimizer, options);
    for (const auto& model : models_) {
      model->compare_gradients();
      model->check_buffers(*context_);
    }
  };
  if (!closure) check();
  // With a closure the gradients exist only after it has run, so the checks move into it.
  const auto checked_closure = !closure ? closure : LossClosure([&] {
    const auto loss = closure();
    check();
    return common_loss(loss);
  });
  finish_window();
  if (clipping_norm_ > 0) {
    before_clipping(optimizer);
    clip_norm(optim::parameters_of(optimizer), clipping_norm_, /*norm_type=*/2.0);
  }
  const auto& observer = context_->program_observer;
  if (observer) observer->before_update(observed(optimizer));
  auto outcome = step_values(optimizer, checked_closure);
  if (observer) observer->after_update(observed(optimizer));
  return outcome;
}

// Checks and weights come before, since the gradients that parameters show in it may be temporary.
StepOutcome GradientPipeline::step_values(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  SteppedValues values(models_);
  const sharded::MemoryScope scope(optimizer_memory_ && lacks_state(optimizer) ? optimizer_memory_ : nullptr);
  auto outcome = try_step(optimizer, closure);
  values.finish(outcome.may_have_stepped());
  return outcome;
}

std::vector<at::Tensor> GradientPipeline::complete_of(std::vector<at::Tensor> parameters) const {
  std::erase_if(parameters, [&](const auto& parameter) {
    return division_of(parameter) != nullptr ||
           (stages() != nullptr && place_in_stages(parameter).first < stages()->entries.size());
  });
  return parameters;
}

ProgramObserver::Update GradientPipeline::observed(torch::optim::Optimizer& optimizer) const {
  const auto parameters = optim::parameters_of(optimizer);
  ProgramObserver::Update update{.optimizer = &optimizer, .parameters = complete_of(parameters)};
  if (update.parameters.size() == parameters.size()) update.state = optim::state_tensors(optimizer);
  for (auto& group : optimizer.param_groups()) update.learning_rates.push_back(group.options().get_lr());
  return update;
}

// An optimizer such as LBFGS decides by the loss how often it evaluates the closure, and each evaluation is collective:
// ranks that returned the losses of their own batches would make different numbers of calls. Losses that the program
// has averaged are returned unchanged.
at::Tensor GradientPipeline::common_loss(const at::Tensor& loss) const {
  if (context_->world_size == 1 || !loss.defined()) return loss;
  const auto all = context_->world.all_gather(loss.detach().reshape({1}));
  return all.eq(all[0]).all().item<bool>() ? loss : all.mean();
}

// Detects loss.backward() instead of accelerator.backward(loss), which skips the division by the accumulation steps and
// the exact weights. Under fp16 the scaler itself rejects gradients that it has not scaled.
void GradientPipeline::check_loss_was_weighted(const torch::optim::Optimizer& optimizer) {
  const auto num_steps = context_->gradient_state.plugin.num_steps.value_or(1);
  if (std::exchange(has_scaled_loss_, true) || (num_steps == 1 && !is_exact_)) return;
  const auto parameters = optim::parameters_of(optimizer);
  if (std::none_of(parameters.begin(), parameters.end(),
                   [](const auto& parameter) { return parameter.grad().defined(); }))
    return;
  check_state(!is_exact_,
              "optimizer.step: loss_weighting: exact requires accelerator.backward, which weights the loss, and it was "
              "never called; call accelerator.backward(loss), not loss.backward()");
  if (context_->rank == 0) {
    warn_once(
        *context_,
        fmt::format("optimizer.step: accelerator.backward, which divides the loss by gradient_accumulation_steps ({}), "
                    "was never called; call accelerator.backward(loss), not loss.backward()",
                    num_steps));
  }
}

// Detects parameters of a module that was not prepared, or parameters outside any module: each rank would step them by
// its own gradient, and the ranks would diverge. Repeated only when the number of gradients changes.
void GradientPipeline::check_belongs_to_models(const torch::optim::Optimizer& optimizer) {
  const auto parameters = optim::parameters_of(optimizer);
  const auto num_gradients = static_cast<std::size_t>(std::count_if(
      parameters.begin(), parameters.end(), [](const auto& parameter) { return parameter.grad().defined(); }));
  if (num_gradients_looked_at_[&optimizer] == num_gradients) return;
  std::vector<std::string> strays;
  for (std::size_t place = 0; place < parameters.size(); ++place) {
    const auto& parameter = parameters[place];
    // Also if no rank averages it: parameters that a plugin ignores are the program's.
    const bool is_of_a_model =
        std::any_of(models_.begin(), models_.end(), [&](const auto& model) { return model->registers(parameter); });
    if (!is_of_a_model && parameter.grad().defined())
      strays.push_back(fmt::format("{} of shape [{}]", place, fmt::join(parameter.sizes(), ", ")));
  }
  check_state(
      strays.empty(),
      "optimizer.step: these parameters of the optimizer belong to no prepared model, so their gradients are not "
      "averaged over the {} ranks: {}; prepare the module that contains them, or average their gradients and "
      "call optimizer.step({{.averaged = true}})",
      context_->world_size, listed(strays, "; "));
  num_gradients_looked_at_[&optimizer] = num_gradients;
}

// Whether any model has averaged the last gradient of this parameter. If two prepared models share it, either one is
// enough.
bool GradientPipeline::accounts_for(const at::Tensor& parameter) const {
  return std::any_of(models_.begin(), models_.end(), [&](const auto& model) {
    return model->origin_of(parameter).value_or(GradientOrigin::kUnreduced) != GradientOrigin::kUnreduced;
  });
}

// Zero gradients are harmless: all ranks may have them from zero_grad(false).
void GradientPipeline::check_averaged(const torch::optim::Optimizer& optimizer, StepOptions options) {
  std::set<const c10::TensorImpl*> own;
  const auto concerns_step = [&](NamedTensors parameters) {
    if (own.empty() && !parameters.empty()) {
      for (const auto& parameter : optim::parameters_of(optimizer)) own.insert(parameter.unsafeGetTensorImpl());
    }
    std::erase_if(parameters, [&](const auto& item) {
      return !own.contains(item.second.unsafeGetTensorImpl()) || is_zero(item.second.grad());
    });
    return parameters;
  };
  const auto names = [](const NamedTensors& parameters) {
    return parameters.size() == 1
               ? fmt::format("'{}'", parameters.front().first)
               : fmt::format("'{}' and {} more parameters", parameters.front().first, parameters.size() - 1);
  };
  for (const auto& model : models_) {
    model->check_current("optimizer.step");
    const auto unaveraged = model->take_unaveraged();
    if (options.averaged || context_->world_size == 1) continue;
    auto bypassing = concerns_step(unaveraged.bypassing);
    std::erase_if(bypassing, [&](const auto& item) { return accounts_for(item.second); });
    check_state(
        bypassing.empty(),
        "optimizer.step: the gradients of {} were not averaged over the {} ranks, because backward did not "
        "follow a call of the prepared model. Call model(x), not model->forward(x) or the module's own forward, "
        "before each backward; add two losses of one forward and call backward once. "
        "If the program averages gradients itself, keep accelerator.no_sync(model) around backward",
        bypassing.empty() ? "" : names(bypassing), context_->world_size);
    const auto written = concerns_step(unaveraged.written);
    check_state(
        written.empty(),
        "optimizer.step: the gradients of {} were written by the program and not by backward, so they were not "
        "averaged over the {} ranks; average them, for example with accelerator.reduce(gradient, \"mean\"), and "
        "call optimizer.step({{.averaged = true}})",
        written.empty() ? "" : names(written), context_->world_size);
  }
  if (!options.averaged && context_->world_size > 1) check_belongs_to_models(optimizer);
}

// The new state is allocated where the model's optimizer memory says, like that of a first step.
void GradientPipeline::restart(torch::optim::Optimizer& optimizer) {
  const SteppedValues values(models_);
  const sharded::MemoryScope scope(optimizer_memory_);
  optim::restart(optimizer);
}

StepOutcome GradientPipeline::try_step(torch::optim::Optimizer& optimizer, const LossClosure& closure) {
  if (scaler_ && scaler_->was_stepped(optimizer)) scaler();  // a second step without a backward in between
  if (guard_.is_on()) {
    if (scaler_ && !scaler_->was_unscaled(optimizer)) unscale(optimizer);
    if (guard_rejects(optimizer)) return StepOutcome(/*was_skipped=*/true);
  }
  if (!scaler_ || closure) {
    optimizer.step(closure);
    return StepOutcome();
  }
  if (!scaler_->was_unscaled(optimizer)) unscale(optimizer);
  auto outcome = step_unless_infinite(optimizer);
  scale_update_is_due_ = true;
  return outcome;
}

StepOutcome GradientPipeline::step_unless_infinite(torch::optim::Optimizer& optimizer) {
  auto* ours = dynamic_cast<optim::OptimizerWithStateDict*>(&optimizer);
  if (ours == nullptr || !scaler_->is_enabled() || !ours->can_skip_on_device())
    return StepOutcome(!scaler_->step(optimizer));
  const auto found_inf = scaler_->begin_step(optimizer);
  ensure(found_inf.size() == 1, "gradients on one device have {} results of the check", found_inf.size());
  ours->step_unless(found_inf.front());
  return StepOutcome(found_inf.front());
}

// All ranks see the same norm, since gradients are averaged or the norm is reduced, so all skip or none does.
bool GradientPipeline::guard_rejects(torch::optim::Optimizer& optimizer) {
  auto total = norm(optim::parameters_of(optimizer), /*norm_type=*/2.0).item<double>();
  // The limit applies to the norm before clipping. An infinity that appeared after clipping is still caught.
  if (auto before = norms_before_clipping_.extract(&optimizer); before && std::isfinite(total))
    total = before.mapped().item<double>();
  return std::isfinite(total) ? guard_.skip_norm_above && total > *guard_.skip_norm_above
                              : guard_.skip_non_finite || guard_.skip_norm_above;
}

std::vector<at::Tensor> GradientPipeline::shared_state() {
  return scaler() ? scaler_->state_tensors(context_->device) : std::vector<at::Tensor>();
}

}  // namespace accel
