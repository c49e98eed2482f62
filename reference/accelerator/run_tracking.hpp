#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "reference/accelerator/accelerator_base.hpp"
#include "reference/prepared/prepared_model.hpp"
#include "reference/sharded/activation_meter.hpp"
#include "reference/tree/value.hpp"

namespace accel {

class GeneralTracker;
class Profiler;
class Trackers;
struct GetTrackerOptions;

/// The Accelerator's trackers, profiles and memory accounts. Source: accelerate/accelerator.py.
class RunTracking : public virtual AcceleratorBase {
 public:
  /// Starts a run of the trackers in `log_with`. Every rank calls these functions; trackers write on the main process
  /// only, unless a tracker declares otherwise. See accel::Trackers. Source: accelerate/accelerator.py.
  void init_trackers(const std::string& project_name, const std::optional<Value::Dict>& config = std::nullopt,
                     const Value::Dict& init_kwargs = {});
  void log(const Value::Dict& values, std::optional<std::int64_t> step = std::nullopt,
           const Value::Dict& log_kwargs = {});
  void log_images(const std::map<std::string, at::Tensor>& images, std::optional<std::int64_t> step = std::nullopt);
  /// Using the tracker needs `<accel/tracking.hpp>`.
  [[nodiscard]] GeneralTracker& get_tracker(const std::string& name);
  [[nodiscard]] GeneralTracker& get_tracker(const std::string& name, const GetTrackerOptions& options);
  /// Profiles the operators of this rank while `body(profiler)` runs. With output_trace_dir, writes
  /// profile_{rank}.json there, waits for all ranks, and is collective. `kwargs` defaults to the options'
  /// profile_kwargs. See accel::Profiler, which needs `<accel/tracking.hpp>`.
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
    run_profiled([&](Profiler& profiler) { body(profiler); }, kwargs, where);
  }

  /// Returns the memory that this rank holds for a model by kind, current and peak; for an unsharded model only the
  /// current values. accel::sharded::plan_memory predicts them before a run. Throws ArgumentError for an optimizer
  /// whose state cannot be read: see accel::optim::state_dict.
  template <typename Module>
  [[nodiscard]] sharded::MemoryAccount memory_account(const PreparedModel<Module>& model) const {
    return account_of(*model.parallel_model());
  }
  /// While the returned object lives, allocations of this thread on the rank's device that belong to no other kind
  /// count as the model's activations. Keep it around forward and backward. It makes each allocation slightly slower,
  /// so measure only some steps.
  template <typename Module>
  [[nodiscard]] sharded::ActivationMeter measure_activations(const PreparedModel<Module>& model) const {
    return sharded::ActivationMeter(model.parallel_model()->memory(), context_->device);
  }

 protected:
  RunTracking();
  void finish_trackers();

 private:
  void run_profiled(const std::function<void(Profiler&)>& body, const std::optional<ProfileKwargs>& kwargs,
                    std::source_location where);
  [[nodiscard]] sharded::MemoryAccount account_of(ParallelModel& model) const;

  std::shared_ptr<Trackers> trackers_;
};

}  // namespace accel
