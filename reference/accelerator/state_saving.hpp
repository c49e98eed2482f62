#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <utility>

#include "reference/accelerator/accelerator_base.hpp"
#include "reference/accelerator/preparable.hpp"
#include "reference/prepared/prepared_model.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/training_state/checkpointing.hpp"
#include "reference/tree/value.hpp"

namespace accel {

/// The Accelerator's checkpoints, and access to the unsharded values of models. Source: accelerate/accelerator.py;
/// accelerate/checkpointing.py.
class StateSaving : public virtual AcceleratorBase {
 public:
  /// Saves all prepared and registered objects, the position in the data and in the accumulation window, and the random
  /// state of every rank. Returns the folder. With automatic naming the folder is
  /// project_dir/checkpoints/checkpoint_{save_iteration} and `output_dir` is ignored. The folder gets its final name
  /// only when it is complete. For files and errors see Checkpointing and training_state/state_files.hpp. Collective.
  /// Source: accelerate/accelerator.py, save_state; accelerate/checkpointing.py.
  std::string save_state(const std::string& output_dir = "", SaveStateOptions options = {},
                         std::source_location where = std::source_location::current()) {
    const auto call = library_call("save_state", output_dir);
    const CallSite site(where, call);
    return checkpointing_->save(training(), output_dir, options);
  }
  /// Loads a checkpoint into the prepared and registered objects, which must be the same and in the same order as when
  /// it was saved. Without `input_dir`, loads the newest checkpoint of the project. Returns the folder.
  ///
  /// Loops over loaders resume after the samples already consumed. Do not call skip_first_batches as well, as scripts
  /// for Python's Accelerate do: it would skip the same batches again. Checkpoints of another world size and of
  /// Python's Accelerate load too; the latter contain no position in a loader, so there the program must skip. Loads
  /// everything, or throws CheckpointError on every rank and changes nothing. Collective.
  std::string load_state(const std::string& input_dir = "", const LoadStateOptions& options = {},
                         std::source_location where = std::source_location::current()) {
    const auto call = library_call("load_state", input_dir);
    const CallSite site(where, call);
    return checkpointing_->load(training(), input_dir, options);
  }
  /// Whether `load_state(input_dir)` finds a checkpoint: false before the first save is complete, for example after a
  /// crash in it. Collective.
  [[nodiscard]] bool has_checkpoint(const std::string& input_dir = "",
                                    std::source_location where = std::source_location::current()) {
    const auto call = library_call("has_checkpoint", input_dir);
    const CallSite site(where, call);
    return checkpointing_->has_checkpoint(input_dir);
  }
  /// Waits until checkpoints of `save_state(..., {.async = true})` are complete. Collective.
  void finish_saving(std::source_location where = std::source_location::current()) {
    const CallSite site(where);
    checkpointing_->finish();
  }
  /// Saves only the model's weights, unsharded, as model.safetensors or as several files with an index. The main
  /// process writes them; `load_checkpoint_in_model` and Python can read them. Throws CheckpointError on every rank.
  /// Collective. Source: accelerate/accelerator.py, save_model.
  template <typename Module>
  void save_model(const PreparedModel<Module>& model, const std::string& save_directory,
                  const SaveModelOptions& options = {},
                  std::source_location where = std::source_location::current()) const {
    const auto call = library_call("save_model", save_directory);
    const CallSite site(where, call);
    checkpointing_->save_model(get_state_dict(model), save_directory, options);
  }
  /// Writes a value as torch.save does, on the main process, or with save_on_each_node on that of every machine. Not
  /// collective. Throws FileError if it cannot be written. Source: accelerate/utils/other.py, save.
  void save(const Value& object, const std::string& file) const { checkpointing_->save_object(object, file); }
  /// The same for tensors by name; `safe_serialization`: as safetensors, where shared tensors have one name.
  void save(const NamedTensors& tensors, const std::string& file, bool safe_serialization = false) const {
    checkpointing_->save_object(tensors, file, safe_serialization);
  }
  /// Adds objects to checkpoints: modules, such as an average of weights, and optimizers, as variables, holders or
  /// shared_ptr; and any object with `state_dict() -> Value` and `load_state_dict(const Value&)`. Variables must
  /// outlive the Accelerator.
  template <typename... Objects>
  void register_for_checkpointing(Objects&... objects) {
    (training().custom.push_back(custom_of(objects)), ...);
  }
  /// Keeps a hook registered while it lives.
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
  [[nodiscard]] const ProjectConfiguration& project_configuration() const { return checkpointing_->config(); }
  [[nodiscard]] const std::string& project_dir() const { return checkpointing_->config().project_dir; }
  [[nodiscard]] const std::string& logging_dir() const { return checkpointing_->config().logging_dir; }

  /// Returns all parameters and buffers by name, unsharded, on the CPU. For a sharded model only the main process gets
  /// them and other ranks get an empty list. DeepSpeed's zero3_save_16bit_model returns them in the dtype of
  /// mixed_precision. Collective.
  template <typename Module>
  NamedTensors get_state_dict(const PreparedModel<Module>& model) const {
    return model.parallel_model()->full_state(saved_dtype());
  }

  /// Keeps the parameters of a sharded model unsharded on every rank while it lives. Construction and destruction are
  /// collective.
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
  /// `modifier_rank`: the rank whose changes all ranks adopt at the end; without it, changes are discarded. Throws
  /// ArgumentError if it is not a rank. Source: deepspeed.zero.GatheredParameters.
  template <typename Module>
  [[nodiscard]] GatheredParameters gathered_parameters(const PreparedModel<Module>& model,
                                                       std::optional<int> modifier_rank = std::nullopt) const {
    return {model.parallel_model(), context_->world, modifier_rank};
  }

 protected:
  StateSaving() : checkpointing_(std::make_shared<Checkpointing>(*context_, settings().project_config)) {}

 private:
  static TrainingState::Custom custom_module(std::shared_ptr<torch::nn::Module> module);
  static TrainingState::Custom custom_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  template <typename Object>
  static TrainingState::Custom custom_of(Object& object) {
    using T = std::remove_cv_t<Object>;
    constexpr bool has_state = requires {
      Value(object.state_dict());
      object.load_state_dict(std::declval<const Value&>());
    };
    if constexpr (has_state) {
      return {[&object] { return Value(object.state_dict()); },
              [&object](const Value& state) { object.load_state_dict(state); }};
    } else if constexpr (detail::ModuleHolderObject<T>) {
      return custom_module(object.ptr());
    } else if constexpr (detail::ModulePointer<T>) {
      return custom_module(object);
    } else if constexpr (detail::ModuleObject<T>) {
      return custom_module(detail::shared_module(object));
    } else if constexpr (detail::OptimizerPointer<T>) {
      return custom_optimizer(object);
    } else if constexpr (detail::OptimizerObject<T>) {
      return custom_optimizer(detail::borrowed<torch::optim::Optimizer>(object));
    } else {
      static_assert(detail::kNever<Object>,
                    "register_for_checkpointing: the object lacks `Value state_dict()` or `load_state_dict(const "
                    "Value&)`; add both, or pass a module or an optimizer");
      return {};
    }
  }
  // What the ranks' calls must have in common: the last part of the path, since a disk may be mounted elsewhere on
  // another machine.
  [[nodiscard]] static std::string library_call(const char* name, const std::string& path);
  // The dtype in which unsharded weights of a sharded model are saved, if the DeepSpeed plugin sets one.
  [[nodiscard]] std::optional<at::ScalarType> saved_dtype() const;

  std::shared_ptr<Checkpointing> checkpointing_;
};

}  // namespace accel
