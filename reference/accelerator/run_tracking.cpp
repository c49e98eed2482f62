#include "reference/accelerator/run_tracking.hpp"

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <set>

#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/profiler/profiler.hpp"
#include "reference/sharded/file_memory.hpp"
#include "reference/tracking/trackers.hpp"

namespace accel {

RunTracking::RunTracking() {
  const auto& logging_dir = settings().project_config.logging_dir;
  trackers_ = std::make_shared<Trackers>(*context_, settings().log_with,
                                         logging_dir.empty() ? std::nullopt : std::optional(logging_dir));
}

void RunTracking::init_trackers(const std::string& project_name, const std::optional<Value::Dict>& config,
                                const Value::Dict& init_kwargs) {
  trackers_->init_trackers(project_name, config, init_kwargs);
}

void RunTracking::log(const Value::Dict& values, std::optional<std::int64_t> step, const Value::Dict& log_kwargs) {
  trackers_->log(values, step, log_kwargs);
}

void RunTracking::log_images(const std::map<std::string, at::Tensor>& images, std::optional<std::int64_t> step) {
  trackers_->log_images(images, step);
}

GeneralTracker& RunTracking::get_tracker(const std::string& name) { return trackers_->get_tracker(name); }

GeneralTracker& RunTracking::get_tracker(const std::string& name, const GetTrackerOptions& options) {
  return trackers_->get_tracker(name, options);
}

void RunTracking::finish_trackers() { trackers_->end_training(); }

void RunTracking::run_profiled(const std::function<void(Profiler&)>& body, const std::optional<ProfileKwargs>& kwargs,
                               std::source_location where) {
  const auto& used = kwargs ? *kwargs : settings().profile_kwargs;
  Profiler profiler(*context_, used);
  body(profiler);
  profiler.finish();
  if (used.output_trace_dir) context_->world.barrier(where);
}

// Adds the optimizer state to the model's account. An optimizer may hold parameters of several models, so only state of
// this model's own parameters counts. State that is offloaded to files uses no memory.
sharded::MemoryAccount RunTracking::account_of(ParallelModel& model) const {
  auto account = model.memory_account();
  std::set<const c10::TensorImpl*> own;
  for (const auto& parameter : model.module()->parameters()) own.insert(parameter.unsafeGetTensorImpl());
  for (const auto& prepared : training().optimizers) {
    const auto all = optim::parameters_of(prepared.optimizer());
    const auto state = optim::state_dict(prepared.optimizer());
    for (const auto& [index, entries] : state.at("state").as<Value::Dict>()) {
      if (!own.contains(all.at(std::stoul(index)).unsafeGetTensorImpl())) continue;
      for (const auto& [name, value] : entries.as<Value::Dict>()) {
        if (value.is<at::Tensor>() && value.as<at::Tensor>().defined() &&
            !sharded::is_file_backed(value.as<at::Tensor>()))
          account.add(sharded::MemoryKind::kOptimizer, static_cast<std::int64_t>(value.as<at::Tensor>().nbytes()));
      }
    }
  }
  return account;
}

}  // namespace accel
