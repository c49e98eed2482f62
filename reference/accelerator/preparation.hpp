#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/accelerator/accelerator_base.hpp"
#include "reference/accelerator/deepspeed_objects.hpp"
#include "reference/accelerator/memory.hpp"
#include "reference/accelerator/preparable.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/prepared/accelerated_optimizer.hpp"
#include "reference/prepared/prepared_model.hpp"

namespace accel {

class PipelineModel;
struct PipelineLayer;
struct PipelineOptions;

class DistributedDataParallel;
struct ModelTensors;
namespace sharded {
struct ShardGroups;
}

/// The Accelerator's `prepare` and `free_memory`. Source: accelerate/accelerator.py.
class Preparation : public virtual AcceleratorBase {
 public:
  /// Prepares models, optimizers, loaders and schedules for distributed training. Returns them in the order of the
  /// arguments: a tuple, or the object itself if there is only one. They are prepared from left to right, schedules
  /// last, since a schedule follows its prepared optimizer. Prepared objects and objects of other types are returned
  /// unchanged. Collective.
  ///
  /// | object | accepted as |
  /// |---|---|
  /// | model | a ModuleHolder or a shared_ptr of a module, which is kept; or a module, which is borrowed |
  /// | optimizer | an object or a unique_ptr, which is borrowed; a temporary or a shared_ptr, which is kept |
  /// | schedule | an accel::LRScheduler, which is borrowed; or a shared_ptr of one, which is kept |
  /// | loader | an accel::DataLoader; for torch::data see from_torch and from_torch_loader |
  ///
  /// A borrowed object must live as long as a handle is used. When its last handle ends, the Accelerator forgets it: it
  /// is then neither stepped nor part of checkpoints. Objects that are kept are forgotten by `free_memory`.
  ///
  /// LibTorch's loaders, datasets and schedules, plain pointers, AnyModule and temporaries that cannot be kept are
  /// rejected at compile time.
  struct PrepareOptions {
    /// One entry per object: moves the model, optimizer state or batches to the rank's device. Default for each:
    /// device_placement of the Accelerator. Throws ArgumentError for another number of entries, or with a plugin, which
    /// places what it shards itself.
    std::vector<bool> device_placement = {};
  };
  template <typename... Objects>
    requires(!(std::is_same_v<std::remove_cvref_t<Objects>, PrepareOptions> || ...))
  decltype(auto) prepare(Objects&&... objects) {
    // Evaluated here, so that the compiler's message leads to the call in a few lines.
    static_assert(
        ((detail::check_preparable<std::remove_cvref_t<Objects>, !std::is_reference_v<Objects>>() || true) && ...));
    return prepare_each<Objects...>({}, objects...);
  }
  ///     auto [model, optimizer] = accelerator.prepare({.device_placement = {false, true}}, net, adam);
  template <typename... Objects>
  decltype(auto) prepare(const PrepareOptions& options, Objects&&... objects) {
    // Evaluated here, so that the compiler's message leads to the call in a few lines.
    static_assert(
        ((detail::check_preparable<std::remove_cvref_t<Objects>, !std::is_reference_v<Objects>>() || true) && ...));
    check_placement(options.device_placement, sizeof...(Objects));
    return prepare_each<Objects...>(options.device_placement, objects...);
  }

  struct PrepareModelOptions {
    bool evaluation_mode = false;  ///< the model is not trained, so it is not wrapped in DDP and not sharded
    std::optional<bool> device_placement = {};  ///< move it to the rank's device; default: that of the Accelerator
  };
  template <typename Module>
  PreparedModel<Module> prepare_model(std::shared_ptr<Module> module,
                                      PrepareModelOptions options = {false, std::nullopt}) {
    auto parallel = make_parallel(module, options);
    return PreparedModel<Module>(std::move(module), std::move(parallel));
  }
  template <detail::ModuleObject Module>
  PreparedModel<Module> prepare_model(Module& module, PrepareModelOptions options = {false, std::nullopt}) {
    return prepare_model(detail::shared_module(module), options);
  }
  /// A model that only predicts, cut into stages over the mesh's group "pp": Accelerate's prepare_pippy. `model(x)`
  /// returns the outputs on the rank of the last stage, or on every rank with gather_output. Parameters of other stages
  /// are freed. To train, prepare a pipeline_model. Needs `<accel/pipeline.hpp>`. Collective. Source:
  /// accelerate/inference.py, prepare_pippy.
  PreparedModel<PipelineModel> prepare_pipeline(std::vector<PipelineLayer> layers, const PipelineOptions& options);
  template <typename Dataset, typename Collate>
  DataLoaderShard<Dataset, Collate> prepare_data_loader(const DataLoader<Dataset, Collate>& loader,
                                                        std::optional<bool> device_placement = {}) {
    DataLoaderShard<Dataset, Collate> prepared(loader, shard_options(device_placement));
    training().loaders.push_back(prepared.loader());
    warn_of_empty_pass(*prepared.loader());
    return prepared;
  }
  /// `slice_for_dispatch(step, rows, part)` replaces slice_rows to cut a step that rank 0 has read: it returns `rows`
  /// of `step` for part `part`. There is one part per data-parallel rank.
  template <typename Dataset, typename Collate, typename Slice>
    requires(!std::is_same_v<Slice, bool> && !std::is_same_v<Slice, std::optional<bool>> &&
             !std::is_same_v<Slice, std::nullopt_t>)
  DataLoaderShard<Dataset, Collate> prepare_data_loader(const DataLoader<Dataset, Collate>& loader,
                                                        Slice slice_for_dispatch,
                                                        std::optional<bool> device_placement = {}) {
    auto prepared = prepare_data_loader(loader, device_placement);
    prepared.set_slice_for_dispatch(std::move(slice_for_dispatch));
    return prepared;
  }
  /// Returns a loader that skips the first batches of its pass. See accel::skip_first_batches.
  template <typename Loader>
  [[nodiscard]] Loader skip_first_batches(const Loader& loader, std::int64_t num_batches) const {
    return accel::skip_first_batches(loader, num_batches);
  }
  AcceleratedOptimizer prepare_optimizer(torch::optim::Optimizer& optimizer,
                                         std::optional<bool> device_placement = {}) {
    return prepare_optimizer(detail::borrowed(optimizer), device_placement);
  }
  AcceleratedOptimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                         std::optional<bool> device_placement = {});
  struct PrepareSchedulerOptions {
    std::optional<std::int64_t> samples_per_step = {};  ///< samples over all ranks per step of the schedule
    /// False: each call of `step` is one step of the schedule, as for schedules that count epochs. Default: the
    /// Accelerator's step_scheduler_with_optimizer.
    std::optional<bool> step_with_optimizer = {};
  };
  /// The prepared schedule follows the steps of the prepared optimizer whose learning rates it sets, or of all prepared
  /// optimizers if that one is not prepared.
  AcceleratedScheduler prepare_scheduler(LRScheduler& scheduler, PrepareSchedulerOptions options = {{}, {}}) {
    return prepare_scheduler(detail::borrowed(scheduler), options);
  }
  AcceleratedScheduler prepare_scheduler(std::shared_ptr<LRScheduler> scheduler,
                                         PrepareSchedulerOptions options = {{}, {}});
  /// Creates and prepares the optimizer or the schedule that the DeepSpeed file defines.
  AcceleratedOptimizer prepare_optimizer(const DummyOptim& dummy);
  AcceleratedScheduler prepare_scheduler(const DummyScheduler& dummy);

  /// Whether the device map with which the model was dispatched has more than one entry. Such a model cannot be trained
  /// by several ranks: `prepare` throws ArgumentError. `model`: a handle, a ModuleHolder, a shared_ptr or a module; for
  /// other than a DispatchedModel the answer is false unless parts are moved when they are called.
  template <typename Model>
  [[nodiscard]] bool verify_device_map(const Model& model) const {
    if constexpr (requires { model.hf_device_map(); }) {
      return model.hf_device_map().size() > 1;
    } else if constexpr (detail::ModuleObject<Model>) {
      return is_spread(model);
    } else {
      return is_spread(*model);
    }
  }

  /// Returns the module itself. Its forward computes in the dtype of its parameters.
  template <typename Module>
  const std::shared_ptr<Module>& unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }
  struct UnwrapOptions {
    bool keep_fp32_wrapper = true;
  };
  /// Returns a handle whose forward computes in mixed precision and returns float32, as the prepared model's does, and
  /// does not communicate. Accelerate keeps this wrapper by default. Throws StateError for a sharded model, whose
  /// forward gathers parameters, and ArgumentError for keep_fp32_wrapper false: call unwrap_model(model).
  template <typename Module>
  PreparedModel<Module> unwrap_model(const PreparedModel<Module>& model, UnwrapOptions options) const {
    return PreparedModel<Module>(model.module(), make_unwrapped(*model.parallel_model(), options));
  }

  /// Drops references to all prepared objects, restarts gradient accumulation, resets `objects` to empty values, and
  /// releases cached memory.
  template <typename... Objects>
  void free_memory(Objects&... objects) {
    forget_prepared();
    release_memory(objects...);
  }
  template <typename... Objects>
  void clear(Objects&... objects) {
    free_memory(objects...);
  }

 private:
  using Placement = std::optional<bool>;
  template <typename... Objects>
  decltype(auto) prepare_each(const std::vector<bool>& placements, std::remove_reference_t<Objects>&... objects) {
    static_assert(sizeof...(Objects) > 0, "prepare: nothing to prepare");
    const auto at = [&](std::size_t place) { return placements.empty() ? Placement() : Placement(placements[place]); };
    if constexpr (sizeof...(Objects) == 1) {
      return (prepare_one<Objects>(objects, at(0)), ...);
    } else {
      return [&]<std::size_t... kPlace>(std::index_sequence<kPlace...>) {
        // Braces: left to right.
        std::tuple<decltype(prepare_early<Objects>(objects, Placement()))...> early{
            prepare_early<Objects>(objects, at(kPlace))...};
        return std::tuple<decltype(prepare_one<Objects>(objects, Placement()))...>{
            prepare_late<Objects>(std::get<kPlace>(early), objects)...};
      }(std::index_sequence_for<Objects...>());
    }
  }
  // `Object` is a reference type for an lvalue and a plain type for a temporary. A rejected object is returned by
  // reference, so that the static_assert is the only error that the compiler prints.
  template <typename Object>
  decltype(auto) prepare_one(std::remove_reference_t<Object>& object, Placement placement) {
    using T = std::remove_cvref_t<Object>;
    constexpr bool kIsTemporary = !std::is_reference_v<Object>;
    if constexpr (!detail::check_preparable<T, kIsTemporary>()) {
      return (object);
    } else if constexpr (detail::OptimizerObject<T> && kIsTemporary) {
      return prepare_optimizer(std::make_shared<T>(std::move(object)), placement);
    } else if constexpr (detail::OptimizerObject<T>) {
      return prepare_optimizer(object, placement);
    } else if constexpr (std::is_same_v<DummyOptim, T>) {
      return prepare_optimizer(object);
    } else if constexpr (detail::SchedulerObject<T> || std::is_same_v<DummyScheduler, T>) {
      return prepare_scheduler(object);
    } else if constexpr (detail::ModuleHolderObject<T>) {
      return prepare_model(object.ptr(), {.device_placement = placement});
    } else if constexpr (detail::ModuleObject<T>) {
      return prepare_model(object, {.device_placement = placement});
    } else if constexpr (detail::ModulePointer<T>) {
      return prepare_model(object, {.device_placement = placement});
    } else if constexpr (requires { object.hf_device_map(); }) {
      check_can_be_prepared(verify_device_map(object));
      return T(object);  // a dispatched model
    } else if constexpr (detail::OptimizerPointer<T>) {
      return prepare_optimizer(kept<torch::optim::Optimizer, kIsTemporary>(object), placement);
    } else if constexpr (detail::SchedulerPointer<T>) {
      return prepare_scheduler(kept<LRScheduler, kIsTemporary>(object));
    } else if constexpr (requires { object.total_batch_size(); }) {
      return T(object);  // a loader that is prepared already
    } else if constexpr (requires { prepare_data_loader(object); }) {
      return prepare_data_loader(object, placement);
    } else {
      return T(object);
    }
  }
  // The result of the first pass of `prepare` for schedules, which the second pass prepares.
  struct Waits {};
  template <typename Object>
  static constexpr bool kIsSchedule = [] {
    using T = std::remove_cvref_t<Object>;
    return detail::SchedulerObject<T> || detail::SchedulerPointer<T> || std::is_same_v<DummyScheduler, T>;
  }();
  template <typename Object>
  decltype(auto) prepare_early(std::remove_reference_t<Object>& object, Placement placement) {
    if constexpr (kIsSchedule<Object>) {
      return Waits{};
    } else {
      return prepare_one<Object>(object, placement);
    }
  }
  template <typename Object, typename Early>
  auto prepare_late(Early& early, std::remove_reference_t<Object>& object)
      -> decltype(prepare_one<Object>(object, Placement())) {
    if constexpr (kIsSchedule<Object>) {
      return prepare_one<Object>(object, Placement());
    } else {
      return std::forward<decltype(prepare_one<Object>(object, Placement()))>(early);
    }
  }

  // Shares a shared_ptr, takes over a temporary unique_ptr, and borrows from a unique_ptr that the program keeps.
  template <typename Base, bool kIsTemporary, typename Pointer>
  static std::shared_ptr<Base> kept(Pointer& pointer) {
    check_argument(pointer != nullptr, "prepare: got a null pointer; expected an optimizer or a schedule");
    if constexpr (std::is_copy_constructible_v<Pointer>) {
      return pointer;
    } else if constexpr (kIsTemporary) {
      return std::move(pointer);
    } else {
      return detail::borrowed<Base>(*pointer);
    }
  }

  static bool is_spread(const torch::nn::Module& module);
  void warn_of_empty_pass(const detail::Loader& loader) const;
  // Collective if the model trains on several ranks.
  std::shared_ptr<ParallelModel> make_parallel(const std::shared_ptr<torch::nn::Module>& module,
                                               PrepareModelOptions options);
  std::shared_ptr<ParallelModel> make_unsharded(const std::shared_ptr<torch::nn::Module>& module,
                                                PrepareModelOptions options);
  std::shared_ptr<ParallelModel> make_sharded(const std::shared_ptr<torch::nn::Module>& module);
  void check_can_be_prepared(bool is_spread) const;
  // `stages`: null for a model without them.
  void add_problems_of_stages(const ModelStages* stages, bool is_trained, std::vector<std::string>& problems) const;
  void check_layouts(const ParameterLayouts& layouts, bool is_trained) const;
  void copy_complete_tensors_of_first_peer(const ModelTensors& tensors, const ParameterLayouts& layouts) const;
  static void check_steps_parts(const torch::optim::Optimizer& optimizer, const ParameterLayouts& layouts);
  [[nodiscard]] std::unique_ptr<DistributedDataParallel> make_ddp(ModelTensors tensors, const char* group) const;
  [[nodiscard]] ParallelModel::Options model_options(const torch::nn::Module& module, bool autocasts) const;
  // Moves the module to the rank's device, and with it the state of optimizers that were prepared before it.
  void place(torch::nn::Module& module);
  void check_not_in_deepspeed_file(bool is_file_backed, const char* what, const char* dummy) const;
  static std::shared_ptr<ParallelModel> make_unwrapped(const ParallelModel& model, UnwrapOptions options);
  void check_placement(const std::vector<bool>& placements, std::size_t num_objects) const;
  [[nodiscard]] bool places(Placement placement) const { return placement.value_or(settings().device_placement); }
  AcceleratedOptimizer add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer, Placement placement);
  AcceleratedScheduler add_scheduler(std::shared_ptr<LRScheduler> scheduler, SchedulerOptions options);
  [[nodiscard]] ShardOptions shard_options(Placement placement) const;
  void forget_prepared();

  std::shared_ptr<DeepSpeedObjects> deepspeed_objects_ = std::make_shared<DeepSpeedObjects>();
  std::shared_ptr<const sharded::ShardGroups>
      shard_groups_;  // created for the first sharded model, shared by later ones
};

}  // namespace accel
