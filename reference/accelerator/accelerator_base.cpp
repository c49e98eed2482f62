#include "reference/accelerator/accelerator_base.hpp"

#include "reference/accelerator/mesh_groups.hpp"
#include "reference/core/errors.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// Ignored by the simulator: it may stand in for any backend, and it reports a deadlock at once instead of waiting for
// a time-out.
void apply(const InitProcessGroupKwargs& kwargs, RankContext& context) {
  if (context.backend != "gloo" && context.backend != "nccl") return;
  check_config(
      !kwargs.backend || *kwargs.backend == context.backend,
      "init_process_group_kwargs: backend: the ranks were started over {}, not {}; start them with --backend {}",
      context.backend, kwargs.backend.value_or(""), kwargs.backend.value_or(""));
  if (kwargs.timeout) context.set_timeout(*kwargs.timeout);
}

}  // namespace

// Not part of the constructor: group creation is collective, while every check in the constructor throws on all ranks
// before the first collective. Order: `path` needs the size of the data-parallel group.
void AcceleratorBase::join_mesh() {
  apply(settings().init_process_group_kwargs, *context_);  // before the groups of the mesh, which get its time-out
  take_place();
  training_.path = make_gradient_pipeline();
}

void AcceleratorBase::take_place() {
  shared().mesh = DeviceMesh(*context_, mesh_sizes().value_or(ParallelismConfig{.dp_replicate_size = num_processes()}));
  const auto plan = plan_data_parallel(mesh_sizes(), place_of(*context_));
  shared().data_parallel = {.size = plan.size, .rank = plan.rank, .group = mesh()["dp"]};
  const auto& sizes = mesh().config();
  context_->seed_index = sizes.tp_enabled() || sizes.pp_size > 1 ? std::optional(mesh()["dp_cp"].rank()) : std::nullopt;
  context_->batch_place = {.size = plan.size, .index = plan.rank};
  training_.mesh = mesh().config();
}

void AcceleratorBase::follow_world() {
  take_place();
  for (const auto& weak : training_.loaders) {
    if (const auto loader = weak.lock()) loader->divide_anew(data_parallel());
  }
}

TrainingState& AcceleratorBase::training() const {
  forget_ended();
  return training_;
}

// Schedules first: they use their optimizers.
void AcceleratorBase::forget_ended() const {
  std::erase_if(training_.schedulers, [](const auto& scheduler) { return scheduler.has_no_handle(); });
  std::erase_if(training_.optimizers, [&](const auto& optimizer) {
    if (!optimizer.has_no_handle()) return false;
    if (!optimizer.was_called() && is_main_process()) {
      warn_once(*context_,
                "prepare: the handle of an optimizer has ended before its step() was called, so the optimizer is no "
                "longer prepared; keep the handle that prepare returns, and step it");
    }
    training_.path->remove_optimizer(&optimizer.optimizer());
    return true;
  });
  auto& models = training_.models;
  for (std::size_t index = models.size(); index-- > 0;) {
    if (!models[index]->users().have_ended()) continue;
    training_.path->remove_model(*models[index]);
    models.erase(models.begin() + static_cast<std::ptrdiff_t>(index));
    if (index < training_.num_models_checked_for_optimizer) --training_.num_models_checked_for_optimizer;
  }
}

std::shared_ptr<GradientPipeline> AcceleratorBase::make_gradient_pipeline() const {
  // The last argument is the number of ranks that read the same samples (tensor or sequence parallel). Weighted losses
  // divide by it, because each sample is counted once per such rank.
  return std::make_shared<GradientPipeline>(*context_, settings(), context_->world_size / data_parallel().size);
}

std::optional<Autocast::Options> AcceleratorBase::autocast_options(const AutocastKwargs& kwargs) const {
  if (mixed_precision() == "no") return std::nullopt;
  return Autocast::Options{.device = context_->device.type(),
                           .dtype = mixed_precision() == "fp16" ? at::kHalf : at::kBFloat16,
                           .enabled = kwargs.enabled,
                           .cache_enabled = kwargs.cache_enabled};
}

}  // namespace accel
