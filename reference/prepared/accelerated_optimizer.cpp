// Handles on optimizers and schedules. They decide whether a step happens: only in micro-batches that synchronize
// gradients, and inside backward under DeepSpeed. The step itself is in the gradient pipeline.
#include "reference/prepared/accelerated_optimizer.hpp"

#include <ATen/ops/norm.h>
#include <ATen/record_function.h>
#include <fmt/format.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>

#include "reference/core/errors.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/state/warnings.hpp"

namespace accel {

void AcceleratedOptimizer::step(const GradientPipeline::LossClosure& closure, StepOptions options) {
  status_->was_called = true;
  if (!steps_in_backward_ && context_->gradient_state.sync_gradients) update(closure, options);
}

void AcceleratedOptimizer::take_step() {
  update();
  clear_gradients(/*set_to_none=*/true);
}

// The listener (the simulator's trace) sees the update even if it is skipped, so that steps stay aligned on all ranks.
void AcceleratedOptimizer::update(const GradientPipeline::LossClosure& closure, StepOptions options) {
  const auto listener = context_->listener.get();
  const PhaseScope phase(listener, "optimizer");
  if (listener != nullptr) listener->before_update();
  ++status_->num_updates;
  status_->outcome = path_->step(*optimizer_, closure, options);
  if (listener != nullptr) listener->after_update();
}

bool AcceleratedOptimizer::was_stepped_directly() {
  if (status_->was_called || steps_in_backward_) return false;
  const auto parameters = optim::parameters_of(*optimizer_);
  if (parameters.empty()) return false;
  const at::DisableRecordFunctionGuard no_clock;  // profilers and the simulator's clock must not count this operator
  // The tensor's version counter does not help: LibTorch's optimizers change values under NoGrad through data(). The
  // norm of one parameter is cheap and changes with practically every step.
  const auto norm = parameters.front().detach().norm().item<double>();
  const auto before = std::exchange(status_->norm, norm).value_or(norm);
  const bool has_changed = before != norm && !(std::isnan(before) && std::isnan(norm));
  if (has_changed) status_->was_called = true;  // report only once
  return has_changed;
}

void AcceleratedOptimizer::zero_grad(bool set_to_none) {
  if (!steps_in_backward_ && context_->gradient_state.sync_gradients) clear_gradients(set_to_none);
}

void AcceleratedOptimizer::clear_gradients(bool set_to_none) {
  // Follows Python's zero_grad. LibTorch's zero_grad calls detach_ first, which throws for views such as gradients in
  // DDP's buckets (gradient_as_bucket_view).
  for (auto& group : optimizer_->param_groups()) {
    for (auto& parameter : group.params()) {
      auto& gradient = parameter.mutable_grad();
      if (!gradient.defined()) continue;
      if (set_to_none) {
        gradient.reset();
      } else {
        gradient.grad_fn() ? gradient.detach_() : gradient.requires_grad_(false);
        gradient.zero_();
      }
    }
  }
}

double AcceleratedOptimizer::lr(std::size_t group) const {
  auto& groups = optimizer_->param_groups();
  check_argument(group < groups.size(),
                 "lr: parameter group {} is out of range; expected less than {}, the number of groups", group,
                 groups.size());
  return groups[group].options().get_lr();
}

void AcceleratedOptimizer::set_lr(double lr) {
  for (std::size_t group = 0; group < param_groups().size(); ++group) set_lr(lr, group);
}

void AcceleratedOptimizer::set_lr(double lr, std::size_t group) {
  check_argument(group < param_groups().size(),
                 "set_lr: parameter group {} is out of range; expected less than {}, the number of groups", group,
                 param_groups().size());
  param_groups()[group].options().set_lr(lr);
}

std::vector<torch::optim::OptimizerParamGroup>& AcceleratedOptimizer::param_groups() const {
  return optimizer_->param_groups();
}

void AcceleratedOptimizer::add_param_group(const torch::optim::OptimizerParamGroup& group) {
  const auto& models = path_->models();
  check_state(std::none_of(models.begin(), models.end(), [](const auto& model) { return model->is_sharded(); }),
              "add_param_group: a sharded model's optimizer holds shards; pass all groups to its constructor, and "
              "prepare it then");
  optimizer_->add_param_group(group);
}

bool AcceleratedOptimizer::steps_any_of(const std::vector<at::Tensor>& parameters) const {
  const auto stepped = optim::parameters_of(*optimizer_);
  return std::any_of(parameters.begin(), parameters.end(), [&](const auto& parameter) {
    return std::any_of(stepped.begin(), stepped.end(), [&](const auto& other) { return other.is_same(parameter); });
  });
}

AcceleratedOptimizer AcceleratedOptimizer::handle() const {
  auto handle = *this;
  handle.use_ = status_->users.share();
  return handle;
}

AcceleratedScheduler::AcceleratedScheduler(std::shared_ptr<LRScheduler> scheduler,
                                           std::vector<AcceleratedOptimizer> optimizers, RankContext& context,
                                           std::shared_ptr<GradientPipeline> path, SchedulerOptions options)
    : scheduler_(std::move(scheduler)),
      optimizers_(std::move(optimizers)),
      context_(&context),
      path_(std::move(path)),
      options_(options),
      counted_(std::make_shared<Counted>(scheduler_)) {
  check_argument(options_.samples_per_step.value_or(1) >= 1,
                 "prepare_scheduler: samples_per_step: expected 1 or more, got {}",
                 options_.samples_per_step.value_or(1));
  check_argument(
      !options_.samples_per_step || options_.step_with_optimizer,
      "prepare_scheduler: samples_per_step requires step_with_optimizer: true, since samples are counted in the "
      "optimizer's steps; remove one of the two");
  counted_->updates = num_updates();
  if (!options_.samples_per_step) return;
  path_->count_samples();
  // Samples from before this schedule was prepared do not count.
  counted_->seen = context_->gradient_state.num_samples;
}

// A schedule uses its optimizers.
AcceleratedScheduler AcceleratedScheduler::handle() const {
  auto handle = *this;
  handle.use_ = counted_->users.share();
  for (auto& optimizer : handle.optimizers_) optimizer = optimizer.handle();
  return handle;
}

void AcceleratedScheduler::take_step() {
  if (options_.steps_in_backward && !has_skipped_optimizer()) scheduler_->step();
}

bool AcceleratedScheduler::has_skipped_optimizer() const {
  return std::any_of(optimizers_.begin(), optimizers_.end(),
                     [](const auto& optimizer) { return optimizer.step_was_skipped(); });
}

// Source: accelerate/scheduler.py, AcceleratedScheduler.step. The order of the checks is Python's.
void AcceleratedScheduler::advance(const std::function<void()>& step) {
  if (options_.steps_in_backward) return;
  if (!options_.step_with_optimizer) {
    step();
    return;
  }
  if (!context_->gradient_state.sync_gradients) {
    if (context_->gradient_state.plugin.adjust_scheduler) scheduler_->advance_step_count();
    return;
  }
  warn_if_sparse();
  // Read before the skip check: samples of a skipped step are consumed too, and must not count for the next one.
  const auto window = options_.samples_per_step ? samples_of_window() : 0;
  if (has_skipped_optimizer()) return;
  if (options_.samples_per_step) {
    const auto before = counted_->samples / *options_.samples_per_step;
    counted_->samples += window;
    // A step may complete none, one or several units of the schedule.
    for (auto unit = before; unit < counted_->samples / *options_.samples_per_step && !has_ended(); ++unit) step();
    return;
  }
  for (int i = 0; i < steps_per_call() && !has_ended(); ++i) step();
}

int AcceleratedScheduler::steps_per_call() const {
  return options_.split_batches ? 1 : options_.num_batches_per_step.value_or(context_->world_size);
}

std::int64_t AcceleratedScheduler::num_updates() const {
  if (optimizers_.empty()) return 0;
  const auto updates_of = [](const auto& optimizer) { return optimizer.status_->num_updates; };
  return updates_of(std::ranges::min(optimizers_, {}, updates_of));
}

// One step per epoch is how most programs without an Accelerator use StepLR or ReduceLROnPlateau. Here it would decay N
// times per epoch. Two steps in turn, as of adversarial training, are no epoch.
void AcceleratedScheduler::warn_if_sparse() {
  constexpr std::int64_t kManyUpdates = 3;
  if (options_.samples_per_step || steps_per_call() == 1) return;
  const auto updates = num_updates();
  const auto since = updates - std::exchange(counted_->updates, updates);
  if (since < kManyUpdates || std::exchange(counted_->has_warned, true) || context_->rank != 0) return;
  warn_once(
      *context_,
      fmt::format("prepare_scheduler: this schedule was stepped once after {} steps of its optimizer, and advances "
                  "{} times per call, once per data-parallel rank; call scheduler.step() after each "
                  "optimizer.step(), or, for a schedule that counts epochs, use prepare_scheduler(schedule, "
                  "{{.step_with_optimizer = false}}) or step_scheduler_with_optimizer: false, which advance it "
                  "once per call",
                  since, steps_per_call()));
}

// The comparison is > and not >=, because Python's count includes the step that a schedule makes in its constructor.
// Otherwise the last of `total_steps` rates would never be reached.
bool AcceleratedScheduler::has_ended() const {
  const auto total = scheduler_->total_steps();
  return total && !options_.split_batches && scheduler_->step_count() > *total;
}

// finish_window() sums the samples over all ranks, once per window; a second schedule finds the window empty.
std::int64_t AcceleratedScheduler::samples_of_window() {
  path_->finish_window();
  const auto now = context_->gradient_state.num_samples;
  return now - std::exchange(counted_->seen, now);
}

Value AcceleratedScheduler::state_dict() const {
  auto state = scheduler_->state_dict();
  if (!options_.samples_per_step) return state;
  auto entries = state.as<Value::Dict>();
  entries["samples"] = counted_->samples;
  // The rank's total is not saved, so positions are stored relative to it.
  entries["pending"] = context_->gradient_state.num_samples - counted_->seen;
  return entries;
}

void AcceleratedScheduler::load_state_dict(const Value& state) {
  if (!options_.samples_per_step) {
    scheduler_->load_state_dict(state);
    return;
  }
  const auto is_count = [&](const char* name) {
    return state.contains(name) && state.at(name).is<std::int64_t>() && state.at(name).as<std::int64_t>() >= 0;
  };
  if (!is_count("samples") || (state.contains("pending") && !is_count("pending"))) {
    throw CheckpointError(
        "the state is not that of a schedule with samples_per_step; expected integers 'samples' and 'pending' of 0 or "
        "more");
  }
  auto entries = state.as<Value::Dict>();
  const auto pending = entries.extract("pending");
  entries.erase("samples");
  scheduler_->load_state_dict(entries);
  counted_->samples = state.at("samples").as<std::int64_t>();
  counted_->seen = context_->gradient_state.num_samples - (pending ? pending.mapped().as<std::int64_t>() : 0);
}

}  // namespace accel
