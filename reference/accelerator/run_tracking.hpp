#pragma once

#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>

#include "reference/accelerator/accelerator_state.hpp"
#include "reference/prepared/prepared_model.hpp"
#include "reference/profiler/profiler.hpp"
#include "reference/sharded/activation_meter.hpp"
#include "reference/tracking/trackers.hpp"

namespace accel {

/// What the Accelerator reports of a run: trackers, profiles, memory. Source: accelerate/accelerator.py.
class RunTracking : public virtual AcceleratorState {
 public:
  /// Begins a run of the trackers of `log_with`: see accel::Trackers, whose calls these are. Every rank calls them;
  /// trackers write on the main process, unless they say otherwise. Source: accelerate/accelerator.py.
  void init_trackers(const std::string& project_name, const std::optional<Value::Dict>& config = std::nullopt,
                     const Value::Dict& init_kwargs = {}) {
    trackers_->init_trackers(project_name, config, init_kwargs);
  }
  void log(const Value::Dict& values, std::optional<std::int64_t> step = std::nullopt) { trackers_->log(values, step); }
  void log_images(const std::map<std::string, at::Tensor>& images, std::optional<std::int64_t> step = std::nullopt) {
    trackers_->log_images(images, step);
  }
  [[nodiscard]] GeneralTracker& get_tracker(const std::string& name) { return trackers_->get_tracker(name); }
  /// Records what the operators of this rank take while `body(profiler)` runs; with output_trace_dir,
  /// profile_{rank}.json there, which all ranks wait for. `kwargs`: default: the options' profile_kwargs. See
  /// accel::Profiler. Collective with output_trace_dir.
  ///
  ///     accelerator.profile([&](accel::Profiler& profiler) {
  ///       for (auto& batch : loader) {
  ///         train(batch);
  ///         profiler.step();
  ///       }
  ///     });
  template <typename Body>
  void profile(Body&& body, const std::optional<ProfileKwargs>& kwargs = std::nullopt,
               std::source_location where = std::source_location::current()) {
    const auto& used = kwargs ? *kwargs : options_.profile_kwargs;
    Profiler profiler(*context_, used);
    body(profiler);
    profiler.finish();
    if (used.output_trace_dir) context_->world.barrier(where);
  }

  /// What this rank holds for a model, by kind, now and at most; of one that is not sharded what is there now. Known
  /// before a run from accel::sharded::plan_memory. Throws ArgumentError for an optimizer whose state it cannot read:
  /// see accel::optim::state_dict.
  template <typename Module>
  [[nodiscard]] sharded::MemoryAccount memory_account(const PreparedModel<Module>& model) const {
    return account_of(*model.parallel_model());
  }
  /// While it lives, what this thread allocates and is nothing else of the model counts as its activations: for forward
  /// and backward of a step, now and then, since each allocation costs a little more.
  template <typename Module>
  [[nodiscard]] sharded::ActivationMeter measure_activations(const PreparedModel<Module>& model) const {
    return sharded::ActivationMeter(model.parallel_model()->memory());
  }

 protected:
  RunTracking();
  void finish_trackers() { trackers_->end_training(); }

 private:
  [[nodiscard]] sharded::MemoryAccount account_of(ParallelModel& model) const;

  std::shared_ptr<Trackers> trackers_;
};

}  // namespace accel
