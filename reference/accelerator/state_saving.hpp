#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "reference/accelerator/accelerator_state.hpp"
#include "reference/core/call_site.hpp"
#include "reference/core/value.hpp"
#include "reference/prepared/prepared_model.hpp"
#include "reference/training_state/checkpointing.hpp"

namespace accel {

/// The Accelerator's checkpoints and complete values of models. Source: accelerate/accelerator.py;
/// accelerate/checkpointing.py.
class StateSaving : public virtual AcceleratorState {
 public:
  /// Saves all that was prepared or registered, with the place in the data and in the accumulation window, and every
  /// rank's random numbers; returns the folder. Under automatic naming that is
  /// project_dir/checkpoints/checkpoint_{save_iteration}, and `output_dir` is not read. A folder has its name only once
  /// it is whole. Files and errors: see Checkpointing and checkpoint/state_files.hpp. Collective. Source:
  /// accelerate/accelerator.py, save_state; accelerate/checkpointing.py.
  std::string save_state(const std::string& output_dir = "", SaveStateOptions options = {},
                         std::source_location where = std::source_location::current()) {
    const CallSite site(where);
    return checkpointing_->save(training_, output_dir, options);
  }
  /// Loads it into what was prepared and registered, which must be the same objects in the same order; without a
  /// folder, the newest of the project. Loops over loaders go on where they were: without the `skip_first_batches` of
  /// Accelerate's scripts, which would skip as many again. Also of another number of ranks, and of Python's Accelerate,
  /// whose checkpoints have no place in a loader: there the program skips. Everything or, with a CheckpointError on
  /// every rank, nothing. Returns the folder. Collective.
  std::string load_state(const std::string& input_dir = "",
                         std::source_location where = std::source_location::current()) {
    const CallSite site(where);
    return checkpointing_->load(training_, input_dir);
  }
  /// Waits for `save_state(..., {.async = true})`. Collective.
  void finish_saving(std::source_location where = std::source_location::current()) {
    const CallSite site(where);
    checkpointing_->finish();
  }
  /// The model's weights alone, whole, in model.safetensors or in several files with an index, for
  /// `load_checkpoint_in_model` and Python; written by the main process. Throws CheckpointError on every rank.
  /// Collective. Source: accelerate/accelerator.py, save_model.
  template <typename Module>
  void save_model(const PreparedModel<Module>& model, const std::string& save_directory,
                  const SaveModelOptions& options = {},
                  std::source_location where = std::source_location::current()) const {
    const CallSite site(where);
    checkpointing_->save_model(get_state_dict(model), save_directory, options);
  }
  /// Objects with `state_dict() -> Value` and `load_state_dict(const Value&)`, which must outlive the Accelerator.
  template <typename... Objects>
  void register_for_checkpointing(Objects&... objects) {
    static_assert(
        (requires {
          Value(objects.state_dict());
          objects.load_state_dict(std::declval<const Value&>());
        } && ...),
        "register_for_checkpointing: an object needs `Value state_dict()` and `load_state_dict(const Value&)`");
    (training_.custom.push_back({[&objects] { return Value(objects.state_dict()); },
                                 [&objects](const Value& state) { objects.load_state_dict(state); }}),
     ...);
  }
  /// As long as it lives, a hook is called.
  class [[nodiscard]] HookHandle {
   public:
    explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
    ~HookHandle() { remove(); }
    HookHandle(HookHandle&& other) noexcept : remove_(std::exchange(other.remove_, nullptr)) {}
    HookHandle& operator=(HookHandle&&) = delete;
    void remove() {
      if (const auto remove = std::exchange(remove_, nullptr)) remove();
    }

   private:
    std::function<void()> remove_;
  };
  HookHandle register_save_state_pre_hook(Checkpointing::SaveHook hook);
  HookHandle register_load_state_pre_hook(Checkpointing::LoadHook hook);
  /// The number of the next checkpoint under automatic naming.
  [[nodiscard]] std::int64_t save_iteration() const { return checkpointing_->iteration(); }
  void set_save_iteration(std::int64_t iteration) { checkpointing_->set_iteration(iteration); }
  [[nodiscard]] const std::string& project_dir() const { return checkpointing_->config().project_dir; }
  [[nodiscard]] const std::string& logging_dir() const { return checkpointing_->config().logging_dir; }

  /// All parameters and buffers under their names, whole, on the CPU: of a model that is sharded on the main process
  /// alone, empty on others. With DeepSpeed's zero3_save_16bit_model in the dtype of mixed_precision. Collective.
  template <typename Module>
  NamedTensors get_state_dict(const PreparedModel<Module>& model) const {
    return model.parallel_model()->full_state(saved_dtype());
  }

  /// While it lives, parameters of a model that is sharded are whole, on every rank. Collective at both ends.
  class GatheredParameters {
   public:
    ~GatheredParameters() noexcept(false);
    GatheredParameters(const GatheredParameters&) = delete;
    GatheredParameters& operator=(const GatheredParameters&) = delete;

   private:
    friend class StateSaving;
    GatheredParameters(std::shared_ptr<ParallelModel> model, const Group& world, std::optional<int> modifier_rank);
    std::shared_ptr<ParallelModel> model_;
    const Group* world_;
    std::optional<int> modifier_rank_;
    int uncaught_;
  };
  /// `modifier_rank`: whose changes all ranks take at the end; none: changes are lost. Throws ArgumentError if it is no
  /// rank. Source: deepspeed.zero.GatheredParameters.
  template <typename Module>
  [[nodiscard]] GatheredParameters gathered_parameters(const PreparedModel<Module>& model,
                                                       std::optional<int> modifier_rank = std::nullopt) const {
    return {model.parallel_model(), context_->world, modifier_rank};
  }

 protected:
  StateSaving() : checkpointing_(std::make_shared<Checkpointing>(*context_, options_.project_config)) {}

 private:
  // Of whole weights of sharded models, if DeepSpeed's plugin asks for it.
  [[nodiscard]] std::optional<at::ScalarType> saved_dtype() const;

  std::shared_ptr<Checkpointing> checkpointing_;
};

}  // namespace accel
