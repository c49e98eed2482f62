#pragma once

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>

#include <functional>
#include <iterator>
#include <memory>
#include <source_location>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/accelerator/deepspeed_objects.hpp"
#include "reference/accelerator/memory.hpp"
#include "reference/accelerator/operations.hpp"
#include "reference/accelerator/preparable.hpp"
#include "reference/config/options.hpp"
#include "reference/core/call_site.hpp"
#include "reference/core/printed.hpp"
#include "reference/core/tree_rows.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/prepared/accelerated_optimizer.hpp"
#include "reference/prepared/prepared_model.hpp"
#include "reference/profiler/profiler.hpp"
#include "reference/sharded/activation_meter.hpp"
#include "reference/state/objects.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/trackers.hpp"
#include "reference/training_state/checkpointing.hpp"

/// The front end: Hugging Face Accelerate's Accelerator for C++ and LibTorch.
///
///     accel::Accelerator accelerator({.mixed_precision = "bf16"});
///     auto [model, optimizer, batches] = accelerator.prepare(net, sgd, loader);
///     for (auto& [image, label] : batches) {
///       auto window = accelerator.accumulate(model);
///       auto loss = torch::nn::functional::cross_entropy(model(image), label);
///       accelerator.backward(loss);
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// It works over the rank that this thread runs: one process alone, one of a Gloo or NCCL job, or a simulated rank.
/// Thread rule: the rank's thread. Methods that say "collective" are called by every rank, in the same order.
/// Source: accelerate/accelerator.py.
namespace accel {

enum class DistributedType { kNo, kMultiCpu, kMultiGpu, kFsdp, kDeepSpeed };

class Accelerator {
 public:
  /// Throws ConfigError with all problems of the options and of the environment, the same on every rank.
  explicit Accelerator(AcceleratorOptions options = {});
  Accelerator(AcceleratorOptions options, RankContext& context);

  // --- who and where ------------------------------------------------------------------------------------------------
  [[nodiscard]] c10::Device device() const { return context_->device; }
  [[nodiscard]] DistributedType distributed_type() const;
  [[nodiscard]] int num_processes() const { return context_->world_size; }
  [[nodiscard]] int process_index() const { return context_->rank; }
  [[nodiscard]] int local_process_index() const { return context_->local_rank; }
  [[nodiscard]] bool is_main_process() const { return process_index() == 0; }
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0; }
  [[nodiscard]] bool is_last_process() const { return process_index() == num_processes() - 1; }
  [[nodiscard]] bool use_distributed() const { return num_processes() > 1; }
  [[nodiscard]] const std::string& mixed_precision() const { return mixed_precision_; }
  [[nodiscard]] bool sync_gradients() const { return context_->gradient_state.sync_gradients; }
  void set_sync_gradients(bool value) { context_->gradient_state.sync_gradients = value; }
  [[nodiscard]] int gradient_accumulation_steps() const;
  void set_gradient_accumulation_steps(int steps);
  [[nodiscard]] GradientState& gradient_state() const { return context_->gradient_state; }
  [[nodiscard]] RankContext& context() const { return *context_; }
  [[nodiscard]] bool optimizer_step_was_skipped() const;
  [[nodiscard]] const DataLoaderConfiguration& dataloader_config() const { return options_.dataloader_config; }
  [[nodiscard]] bool split_batches() const { return options_.splits(); }
  [[nodiscard]] bool even_batches() const { return options_.dataloader_config.even_batches; }
  void set_even_batches(bool value) { options_.dataloader_config.even_batches = value; }
  /// One of `deepspeed_plugins`. Throws ArgumentError for another name.
  [[nodiscard]] const DeepSpeedPlugin& get_deepspeed_plugin(const std::string& name) const;
  /// The plugin by which models are prepared, and steps are taken, from here on. Source: accelerate/state.py,
  /// select_deepspeed_plugin.
  void select_deepspeed_plugin(const std::string& name);
  /// Ranks that read different samples, and this rank among them; the world, unless parallelism_config makes a mesh.
  [[nodiscard]] int data_parallel_size() const { return data_parallel_.size; }
  [[nodiscard]] int data_parallel_rank() const { return data_parallel_.rank; }

  // --- prepare ------------------------------------------------------------------------------------------------------
  /// Models, optimizers, loaders and schedules, in any order; returned in the same order, a single one bare. Loaders,
  /// models and optimizers first, schedules last. What is prepared already, and objects of other types, pass through.
  /// Collective.
  ///
  /// | object | accepted as |
  /// |---|---|
  /// | model | a ModuleHolder, a shared_ptr of a module, or a module itself, which must stay alive as long as the model
  /// is used | | optimizer | an object, or a unique_ptr that stays the program's, alive as long as the handle is used;
  /// a temporary or a shared_ptr, which is kept | | schedule | an accel::LRScheduler, alive as long as the handle is
  /// used, or a shared_ptr of one, which is kept | | loader | an accel::DataLoader; of torch::data see from_torch and
  /// from_torch_loader |
  ///
  /// LibTorch's loaders, datasets and schedules, plain pointers, AnyModule and temporaries that cannot be kept are
  /// refused at compile time.
  template <typename... Objects>
  decltype(auto) prepare(Objects&&... objects) {
    static_assert(sizeof...(Objects) > 0, "prepare: nothing to prepare");
    if constexpr (sizeof...(Objects) == 1) {
      return (prepare_one<Objects>(objects), ...);
    } else {
      return std::tuple<decltype(prepare_one<Objects>(objects))...>{
          prepare_one<Objects>(objects)...};  // braces: left to right
    }
  }

  struct PrepareModelOptions {
    bool evaluation_mode = false;  ///< no DDP: nothing to synchronise
  };
  template <typename Module>
  PreparedModel<Module> prepare_model(std::shared_ptr<Module> module, PrepareModelOptions options = {false}) {
    if (shards() && !options.evaluation_mode) return remember(PreparedModel<Module>(module, shard_model(module)));
    if (options_.device_placement) place(*module);
    ModelTensors tensors;
    for (const auto& item : module->named_parameters()) tensors.parameters.emplace_back(item.key(), item.value());
    tensors.parameters = each_once(std::move(tensors.parameters));
    tensors.buffers = each_once(module->buffers());
    auto wrapper = wrap_model(*module, std::move(tensors), options.evaluation_mode);
    return remember(PreparedModel<Module>(std::move(module), std::move(wrapper)));
  }
  template <detail::ModuleObject Module>
  PreparedModel<Module> prepare_model(Module& module, PrepareModelOptions options = {false}) {
    return prepare_model(detail::shared_module(module), options);
  }
  template <typename Dataset, typename Collate>
  DataLoaderShard<Dataset, Collate> prepare_data_loader(const DataLoader<Dataset, Collate>& loader) {
    DataLoaderShard<Dataset, Collate> prepared(loader, shard_options());
    training_.loaders.push_back(prepared.core());
    return prepared;
  }
  /// `slice_for_dispatch(step, rows, part)` cuts what rank 0 has read for a step, in place of slice_rows: `rows` are
  /// those of part `part` of the step, one part for each rank that reads its own samples.
  template <typename Dataset, typename Collate, typename Slice>
  DataLoaderShard<Dataset, Collate> prepare_data_loader(const DataLoader<Dataset, Collate>& loader,
                                                        Slice slice_for_dispatch) {
    auto prepared = prepare_data_loader(loader);
    prepared.set_slice_for_dispatch(std::move(slice_for_dispatch));
    return prepared;
  }
  /// The loader without the first batches of its pass: accel::skip_first_batches.
  template <typename Loader>
  [[nodiscard]] Loader skip_first_batches(const Loader& loader, std::int64_t num_batches) const {
    return accel::skip_first_batches(loader, num_batches);
  }
  AcceleratedOptimizer prepare_optimizer(torch::optim::Optimizer& optimizer) {
    return prepare_optimizer(detail::borrowed(optimizer));
  }
  AcceleratedOptimizer prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  struct PrepareSchedulerOptions {
    std::optional<std::int64_t> samples_per_step = {};  ///< the schedule's unit is so many samples, over all ranks
  };
  /// Tied to the prepared optimizer whose rates it sets, or to all if there is none such: it waits for their steps.
  AcceleratedScheduler prepare_scheduler(LRScheduler& scheduler, PrepareSchedulerOptions options = {std::nullopt}) {
    return prepare_scheduler(detail::borrowed(scheduler), options);
  }
  AcceleratedScheduler prepare_scheduler(std::shared_ptr<LRScheduler> scheduler,
                                         PrepareSchedulerOptions options = {std::nullopt});
  /// The optimizer and the schedule of the DeepSpeed file.
  AcceleratedOptimizer prepare_optimizer(const DummyOptim& dummy);
  AcceleratedScheduler prepare_scheduler(const DummyScheduler& dummy);

  /// All parameters and buffers under their names, whole, on the CPU: of a model that is sharded on the main process
  /// alone, empty on others. With DeepSpeed's zero3_save_16bit_model in the dtype of mixed_precision. Collective.
  template <typename Module>
  NamedTensors get_state_dict(const PreparedModel<Module>& model) const {
    if (const auto& sharded = model.shared_wrapper()->sharded) return full_state(*sharded);
    auto state = checkpoint::state_dict_of(*model.module());
    for (auto& [name, tensor] : state) tensor = tensor.detach().cpu();
    return state;
  }

  /// What this rank holds for a model, by kind, now and at most; of one that is not sharded what is there now. Known
  /// before a run from accel::sharded::plan_memory. Throws ArgumentError for an optimizer whose state it cannot read:
  /// see accel::optim::state_dict.
  template <typename Module>
  [[nodiscard]] sharded::MemoryAccount memory_account(const PreparedModel<Module>& model) const {
    return account_of(*model.shared_wrapper(), model.parameters());
  }
  /// While it lives, what this thread allocates and is nothing else of the model counts as its activations: for forward
  /// and backward of a step, now and then, since each allocation costs a little more.
  template <typename Module>
  [[nodiscard]] sharded::ActivationMeter measure_activations(const PreparedModel<Module>& model) const {
    const auto& wrapper = *model.shared_wrapper();
    return sharded::ActivationMeter(wrapper.sharded ? wrapper.sharded->memory() : *wrapper.memory);
  }

  /// While it lives, parameters of a model that is sharded are whole, on every rank. Collective at both ends.
  class GatheredParameters {
   public:
    ~GatheredParameters() noexcept(false);
    GatheredParameters(const GatheredParameters&) = delete;
    GatheredParameters& operator=(const GatheredParameters&) = delete;

   private:
    friend class Accelerator;
    GatheredParameters(std::shared_ptr<sharded::ShardedModel> model, const Group& world,
                       std::optional<int> modifier_rank);
    std::shared_ptr<sharded::ShardedModel> model_;  // null where parameters are whole anyway
    const Group* world_;
    std::optional<int> modifier_rank_;
    int uncaught_;
  };
  /// `modifier_rank`: whose changes all ranks take at the end; none: changes are lost. Throws ArgumentError if it is no
  /// rank. Source: deepspeed.zero.GatheredParameters.
  template <typename Module>
  [[nodiscard]] GatheredParameters gathered_parameters(const PreparedModel<Module>& model,
                                                       std::optional<int> modifier_rank = std::nullopt) const {
    return {model.shared_wrapper()->sharded, context_->world, modifier_rank};
  }

  template <typename Module>
  const std::shared_ptr<Module>& unwrap_model(const PreparedModel<Module>& model) const {
    return model.module();
  }

  // --- the training step --------------------------------------------------------------------------------------------
  struct BackwardOptions {
    bool retain_graph = false;
    bool create_graph = false;
    std::optional<double> num_items =
        {};  ///< loss_weighting exact: the loss is the mean of so many; default: the batch's samples
  };
  /// Gradients of loss / gradient_accumulation_steps. Collective when gradients synchronise.
  ///
  /// With loss_weighting "exact" the gradient of a window is that of the mean over all its items on all ranks, whatever
  /// the sizes of micro-batches: `loss` is this micro-batch's mean, over `num_items` (samples, or tokens that are not
  /// masked), in which duplicates that fill a step are items as any, or one loss for each sample of the batch, shape
  /// (n), of which they are left out. Gradients are weighted when the optimizer steps, or before they are clipped: one
  /// all-reduce of 16 bytes for each window. Throws StateError behind that, if the micro-batch belongs to a longer
  /// window.
  void backward(const at::Tensor& loss, BackwardOptions options = {false, false, std::nullopt},
                std::source_location where = std::source_location::current());

  /// One micro-batch of an accumulation window; ends with the scope. Decides `sync_gradients`.
  class Window {
   public:
    ~Window();
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    Window(Window&& other) noexcept
        : restore_(std::exchange(other.restore_, {})), micro_batch_(std::move(other.micro_batch_)) {}

   private:
    friend class Accelerator;
    Window() = default;
    struct Restored {
      std::shared_ptr<ModelWrapper> wrapper = {};
      bool backward;
      std::optional<bool> forward = {};  // none: as the scope's forwards left it
    };
    std::vector<Restored> restore_;
    std::shared_ptr<void> micro_batch_;
  };
  template <typename... Modules>
  [[nodiscard]] Window accumulate(const PreparedModel<Modules>&... models) {
    return begin_micro_batch({models.shared_wrapper()...});
  }
  /// While the scope lives, backward communicates nothing.
  template <typename Module>
  [[nodiscard]] Window no_sync(const PreparedModel<Module>& model) {
    return suspend_sync({model.shared_wrapper()});
  }

  /// While the scope lives, the next backward synchronises gradients of a model whose forwards were under no_sync.
  template <typename Module>
  [[nodiscard]] Window trigger_sync_in_backward(const PreparedModel<Module>& model) {
    return resume_sync(model.shared_wrapper());
  }

  /// A model whose collectives a rank that has no more batches repeats.
  class Joinable {
   public:
    template <typename Module>
    Joinable(const PreparedModel<Module>& model) : wrapper_(model.shared_wrapper()) {}

   private:
    friend class Accelerator;
    std::shared_ptr<ModelWrapper> wrapper_;
  };
  struct JoinOptions {
    std::optional<bool> even_batches = {};  ///< of all prepared loaders, while the body runs; default: as they are
  };
  /// Runs `body`, a loop over loaders, on ranks that may have different numbers of batches: one that is done takes part
  /// in the others' gradient reductions, with zeros, until all are done; then all have the model of the rank that was
  /// last. Gradients are divided by the number of ranks, whoever takes part. Loaders are as they were behind it, also
  /// if the body throws. Only with even_batches off is there anything to join. Of several models, each runs forward and
  /// backward in turn, in the order in which they are named here. With gradient accumulation set sync_with_dataloader
  /// to false: the ranks' last batches are not the same. Collective.
  ///
  ///     accelerator.join_uneven_inputs({model}, {.even_batches = false}, [&] { for (auto& batch : loader) ...; });
  ///
  /// Source: accelerate/accelerator.py, join_uneven_inputs, which does nothing on CPUs;
  /// torch/distributed/algorithms/join.py.
  void join_uneven_inputs(const std::vector<Joinable>& models, JoinOptions options, const std::function<void()>& body,
                          std::source_location where = std::source_location::current());

  /// Divides gradients by fp16's loss scale: once for each step, and where gradients synchronise, else StateError.
  /// Nothing in other precisions.
  void unscale_gradients();
  void unscale_gradients(const AcceleratedOptimizer& optimizer);
  /// Scales gradients to a total norm of at most `max_norm`; returns the norm before, shape []. Gradients that are not
  /// yet unscaled are unscaled first. On a micro-batch that does not step it only tells the norm so far.
  at::Tensor clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double norm_type = 2.0);
  void clip_grad_value_(const std::vector<at::Tensor>& parameters, double clip_value);

  /// The loss scale under fp16, else null.
  [[nodiscard]] GradScaler* scaler() const { return training_.path->scaler(); }
  /// Autocast in the accelerator's precision while the scope lives; nothing in full precision.
  [[nodiscard]] std::unique_ptr<Autocast> autocast() const { return autocast(options_.autocast_kwargs); }
  [[nodiscard]] std::unique_ptr<Autocast> autocast(AutocastKwargs kwargs) const;

  /// --- a flag that any rank may raise, and all ask for together ---
  void set_trigger() { trigger_ = true; }
  /// Whether any rank has set the trigger since it was last found set. Collective.
  [[nodiscard]] bool check_trigger(std::source_location where = std::source_location::current());

  /// Forgets what was prepared, begins accumulation anew, empties `objects`, and gives cached memory back.
  template <typename... Objects>
  void free_memory(Objects&... objects) {
    forget_prepared();
    release_memory(objects...);
  }
  template <typename... Objects>
  void clear(Objects&... objects) {
    free_memory(objects...);
  }

  // --- checkpoints ---------------------------------------------------------------------------------------------------
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

  // --- watching a run ------------------------------------------------------------------------------------------------
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
  /// The last call of a training: checkpoints that are being written get their names, trackers finish. Collective.
  void end_training(std::source_location where = std::source_location::current()) {
    finish_saving(where);
    trackers_->end_training();
  }
  /// Records what the operators of this rank take while `body(profiler)` runs; with output_trace_dir,
  /// profile_{rank}.json there, which all ranks wait for. `kwargs`: default: the options' profile_kwargs. See
  /// accel::Profiler. Collective with output_trace_dir.
  ///
  ///     accelerator.profile([&](accel::Profiler& profiler) { for (auto& batch : loader) { train(batch);
  ///     profiler.step(); } });
  template <typename Body>
  void profile(Body&& body, const std::optional<ProfileKwargs>& kwargs = std::nullopt,
               std::source_location where = std::source_location::current()) {
    const auto& used = kwargs ? *kwargs : options_.profile_kwargs;
    Profiler profiler(*context_, used);
    body(profiler);
    profiler.finish();
    if (used.output_trace_dir) wait_for_everyone(where);
  }

  // --- collectives on trees -----------------------------------------------------------------------------------------
  /// (n, ...) -> (P * n, ...) for every tensor, in the order of the ranks. Collective.
  /// Numbers and strings in a tree are no tensors, and refused at compile time, as Python's TypeError.
  template <typename T>
  std::remove_cvref_t<T> gather(const T& tree, std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "gather: a number, string or unknown type has no counterpart on other ranks; gather a tensor "
                  "(torch::tensor(number)), or use gather_object");
    const CallSite site(where);
    verify("gather", tree);
    return with_each(tree, [&](const at::Tensor& tensor) { return operations::gather(context_->world, tensor); });
  }
  /// `gather`, without the duplicates that fill the last step of the active loader. Vectors without tensors, one entry
  /// per sample, are gathered as objects; containers keep their shape. Collective. Throws ArgumentError on such a step
  /// for values that do not hold one row per sample. Without even_batches a last step has no duplicates: of tensors
  /// that pad_across_processes made alike, the rows behind its samples are left out.
  template <typename T>
  std::remove_cvref_t<T> gather_for_metrics(const T& tree,
                                            std::source_location where = std::source_location::current()) const {
    static_assert(RowTree<T>,
                  "gather_for_metrics: a number, string or unknown type has no row per sample; gather a tensor with "
                  "one row per sample, or a std::vector of entries");
    if constexpr (RowTree<T>) {
      const CallSite site(where);
      return gather_rows_for_metrics(tree);
    } else {
      return tree;
    }
  }
  struct GatherOptions {
    bool use_gather_object =
        false;  ///< entries of a vector are gathered as objects, tensors of different shapes included
  };
  template <Tree T>
  std::vector<T> gather_for_metrics(const std::vector<T>& entries, GatherOptions options,
                                    std::source_location where = std::source_location::current()) const {
    const CallSite site(where);
    if (options.use_gather_object) return gather_list_for_metrics(entries);
    if constexpr (RowTree<std::vector<T>>) {
      return gather_for_metrics(entries);
    } else {
      throw ArgumentError(
          "gather_for_metrics: entries with numbers or strings beside tensors have no rows; set use_gather_object");
    }
  }
  /// A reduced copy: see operations::reduce. Collective.
  template <typename T>
  std::remove_cvref_t<T> reduce(const T& tree, const std::string& reduction = "sum", double scale = 1.0,
                                std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "reduce: a number, string or unknown type has no counterpart on other ranks; reduce the tensor: "
                  "accelerator.reduce(loss.detach(), \"mean\").item<double>(), or torch::tensor(number)");
    const CallSite site(where);
    verify("reduce", tree);
    return with_each(
        tree, [&](const at::Tensor& tensor) { return operations::reduce(context_->world, tensor, reduction, scale); });
  }
  /// See operations::pad_across_processes. Collective.
  template <typename T>
  std::remove_cvref_t<T> pad_across_processes(const T& tree, operations::PadOptions options = {},
                                              std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "pad_across_processes: a number, string or unknown type has no dimension to pad; pass tensors");
    const CallSite site(where);
    return with_each(tree, [&](const at::Tensor& tensor) {
      return operations::pad_across_processes(context_->world, tensor, options);
    });
  }
  /// In place, and returned. Collective.
  template <typename T>
  T& broadcast(T& tree, int from_process = 0, std::source_location where = std::source_location::current()) const {
    static_assert(detail::TensorTree<T>,
                  "broadcast: a number, string or unknown type is not sent; use a tensor (torch::tensor(number)), or "
                  "accel::broadcast_object_list");
    const CallSite site(where);
    verify("broadcast", tree);
    if constexpr (detail::TensorTree<T>)
      for_each_tensor(tree, [&](at::Tensor& tensor) { operations::broadcast(context_->world, tensor, from_process); });
    return tree;
  }

  struct SplitOptions {
    bool apply_padding = false;  ///< the last item again, on ranks that have one less
  };
  /// This rank's items: contiguous, the first ranks one more where they do not divide; empty where there are fewer
  /// items than ranks. Of a tensor rows, of a vector entries, of a map or struct each of its members. Not a collective.
  /// Throws ArgumentError if members differ in their number of items. Source: accelerate/state.py,
  /// split_between_processes.
  template <RowTree T>
  [[nodiscard]] T split_between_processes(const T& inputs, SplitOptions options = {false}) const {
    const auto items = num_rows(inputs).value_or(0);
    if (num_processes() == 1) return inputs;
    const auto own = operations::split_items(items, num_processes(), process_index());
    auto part = slice_rows(inputs, {.begin = own.begin, .end = own.end});
    const auto largest = operations::split_items(items, num_processes(), /*rank=*/0);
    const bool is_short = own.end - own.begin < largest.end - largest.begin;
    return options.apply_padding && is_short
               ? concatenate(std::vector<T>{std::move(part), slice_rows(inputs, {.begin = items - 1, .end = items})})
               : part;
  }

  // --- who runs what ------------------------------------------------------------------------------------------------
  /// Collective.
  void wait_for_everyone(std::source_location where = std::source_location::current()) const {
    context_->world.barrier(where);
  }
  /// One line, from the local main process only: the arguments with spaces between, tensors as LibTorch prints them.
  template <typename... Args>
  void print(const Args&... args) const {
    if (is_local_main_process())
      print_line(fmt::format("{}", fmt::join(std::vector<std::string>{detail::printed(args)...}, " ")));
  }
  template <typename F>
  void on_main_process(F&& f) const {
    if (is_main_process()) f();
  }
  template <typename F>
  void on_local_main_process(F&& f) const {
    if (is_local_main_process()) f();
  }
  template <typename F>
  void on_last_process(F&& f) const {
    if (is_last_process()) f();
  }
  template <typename F>
  void on_process(int index, F&& f) const {
    if (process_index() == index || !use_distributed()) f();
  }
  template <typename F>
  void on_local_process(int index, F&& f) const {
    if (local_process_index() == index || !use_distributed()) f();
  }

  /// The main process runs the scope first, the others after it. Collective.
  class MainFirst {
   public:
    MainFirst(const Group& world, bool is_main, std::source_location where);
    ~MainFirst() noexcept(false);
    MainFirst(const MainFirst&) = delete;
    MainFirst& operator=(const MainFirst&) = delete;

   private:
    const Group& world_;
    bool is_main_;
    std::source_location where_;
    int uncaught_;
  };
  [[nodiscard]] MainFirst main_process_first(std::source_location where = std::source_location::current()) const {
    return {context_->world, is_main_process(), where};
  }
  [[nodiscard]] MainFirst local_main_process_first(std::source_location where = std::source_location::current()) const {
    return {context_->world, is_local_main_process(), where};
  }

 private:
  // `Object`: a reference for what the program named, a plain type for a temporary. What is refused is returned by
  // reference, so that the compiler has no more to say than the reason.
  template <typename Object>
  decltype(auto) prepare_one(std::remove_reference_t<Object>& object) {
    using T = std::remove_cvref_t<Object>;
    constexpr bool kIsTemporary = !std::is_reference_v<Object>;
    if constexpr (detail::OptimizerObject<T> && kIsTemporary) {
      return prepare_optimizer(std::make_shared<T>(std::move(object)));
    } else if constexpr (detail::OptimizerObject<T> || std::is_same_v<DummyOptim, T>) {
      return prepare_optimizer(object);
    } else if constexpr (detail::SchedulerObject<T> && kIsTemporary) {
      static_assert(detail::kNever<T>,
                    "prepare: a temporary schedule would be gone at the end of this line; give it a name: "
                    "accel::StepLR step_lr(...); prepare(..., step_lr)");
      return (object);
    } else if constexpr (detail::SchedulerObject<T> || std::is_same_v<DummyScheduler, T>) {
      return prepare_scheduler(object);
    } else if constexpr (detail::LibTorchScheduler<T> || detail::LibTorchSchedulerPointer<T>) {
      static_assert(detail::kNever<T>,
                    "prepare: LibTorch's own schedules step where their optimizer does not; use accel::StepLR, "
                    "accel::ReduceLROnPlateau or another of accel's");
      return (object);
    } else if constexpr (detail::PlainPointer<T>) {
      static_assert(detail::kNever<T>, "prepare: a plain pointer; pass the object itself (*pointer) or a shared_ptr");
      return (object);
    } else if constexpr (detail::AnyModuleObject<T>) {
      static_assert(detail::kNever<T>,
                    "prepare: a torch::nn::AnyModule, whose forward has no known type; pass the module that it holds");
      return (object);
    } else if constexpr (detail::ModuleHolderObject<T>) {
      return prepare_model(object.ptr());
    } else if constexpr (detail::ModuleObject<T> && kIsTemporary) {
      static_assert(detail::kNever<T>,
                    "prepare: a temporary module would be gone at the end of this line; give it a name, or use "
                    "std::make_shared<Net>(...)");
      return (object);
    } else if constexpr (detail::ModuleObject<T>) {
      return prepare_model(object);
    } else if constexpr (detail::ModulePointer<T> && !std::is_copy_constructible_v<T>) {
      static_assert(detail::kNever<T>,
                    "prepare: a unique_ptr of a module; LibTorch shares modules: use std::make_shared<Net>(...)");
      return (object);
    } else if constexpr (detail::ModulePointer<T>) {
      return prepare_model(object);
    } else if constexpr (detail::OptimizerPointer<T>) {
      return prepare_optimizer(kept<torch::optim::Optimizer, kIsTemporary>(object));
    } else if constexpr (detail::SchedulerPointer<T>) {
      return prepare_scheduler(kept<LRScheduler, kIsTemporary>(object));
    } else if constexpr (detail::LibTorchLoader<T> || detail::LibTorchLoaderPointer<T>) {
      static_assert(detail::kNever<T>,
                    "prepare: a torch::data loader; make accel::DataLoader loader(accel::from_torch(dataset), "
                    "{.batch_size = n}), or keep the loader by accel::from_torch_loader");
      return (object);
    } else if constexpr (requires { object.total_batch_size(); }) {
      return T(object);  // a loader that is prepared already
    } else if constexpr (requires { prepare_data_loader(object); }) {
      return prepare_data_loader(object);
    } else if constexpr (detail::LibTorchDataset<T>) {
      static_assert(detail::kNever<T>,
                    "prepare: a torch::data dataset; make accel::DataLoader loader(accel::from_torch(dataset), "
                    "{.batch_size = n}) and prepare that");
      return (object);
    } else if constexpr (detail::DatasetObject<T>) {
      static_assert(detail::kNever<T>,
                    "prepare: a dataset; make accel::DataLoader loader(dataset, {.batch_size = n}) and prepare that");
      return (object);
    } else {
      return T(object);
    }
  }
  // A unique_ptr that the program keeps is borrowed.
  template <typename Base, bool kIsTemporary, typename Pointer>
  static std::shared_ptr<Base> kept(Pointer& pointer) {
    check_argument(pointer != nullptr, "prepare: a null pointer");
    if constexpr (std::is_copy_constructible_v<Pointer>) {
      return pointer;
    } else if constexpr (kIsTemporary) {
      return std::move(pointer);
    } else {
      return detail::borrowed<Base>(*pointer);
    }
  }

  template <typename Module>
  PreparedModel<Module> remember(PreparedModel<Module> model) {
    context_->has_prepared = true;
    training_.models.push_back({model.module(), model.shared_wrapper()});
    return model;
  }
  [[nodiscard]] NamedTensors full_state(sharded::ShardedModel& model) const;
  // On the rank's device, the states of optimizers that were prepared before it too.
  void place(torch::nn::Module& module);
  std::shared_ptr<ModelWrapper> wrap_model(const torch::nn::Module& module, ModelTensors tensors, bool evaluation_mode);
  [[nodiscard]] bool shards() const { return plugin_.sharding.has_value(); }
  std::shared_ptr<ModelWrapper> shard_model(const std::shared_ptr<torch::nn::Module>& module);
  [[nodiscard]] sharded::MemoryAccount account_of(const ModelWrapper& wrapper,
                                                  const std::vector<at::Tensor>& parameters) const;
  void step_in_backward();
  // Whether a step past the handles has another result than one by them.
  [[nodiscard]] bool handles_matter() const {
    return use_distributed() || mixed_precision_ == "fp16" || gradient_accumulation_steps() > 1;
  }
  void warn_of_models_without_optimizer();
  void warn_of_optimizers_stepped_elsewhere();
  [[nodiscard]] std::optional<std::string> deepspeed_file() const;
  void check_not_in_deepspeed_file(bool is_in_file, const char* what, const char* dummy) const;
  AcceleratedOptimizer add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer);
  AcceleratedScheduler add_scheduler(std::shared_ptr<LRScheduler> scheduler, SchedulerOptions options);
  void tell_of_ignored_keys() const;
  [[nodiscard]] ShardOptions shard_options() const;
  Window begin_micro_batch(std::vector<std::shared_ptr<ModelWrapper>> models);
  static Window suspend_sync(std::vector<std::shared_ptr<ModelWrapper>> models);
  static Window resume_sync(std::shared_ptr<ModelWrapper> model);
  void prepare_for_clipping();
  void forget_prepared();
  // In debug mode, over a group of its own: the user's has no collective that a program does not make.
  template <typename T>
  void verify(const char* operation, const T& tree) const {
    if constexpr (Tree<T>) {
      if (debug_group_) operations::verify(*debug_group_, operation, context_->device, tensors_of(tree));
    }
  }
  // `f` of every tensor. What is no tree of tensors has been refused by a static_assert, to which the compiler is to
  // add nothing.
  template <typename T, typename F>
  static std::remove_cvref_t<T> with_each(const T& tree, F&& f) {
    if constexpr (detail::TensorTree<T>) {
      return map_tensors(tree, f);
    } else {
      return tree;
    }
  }

  // What a gather on the active loader's step keeps: no ranges, everything.
  struct MetricRows {
    std::int64_t per_rank = 0;  // of a value that is cut
    std::vector<RowRange> kept = {};
    bool are_padded = false;  // the others are no duplicates, and a value of fewer rows is not padded
    /// Whether a value of so many rows can be cut; none: it has no dimension for samples.
    [[nodiscard]] bool fit(std::optional<std::int64_t> rows) const {
      return kept.empty() || rows == per_rank || (are_padded && rows.value_or(0) < per_rank);
    }
    static void check(bool fits, std::optional<std::int64_t> rows);
    [[nodiscard]] at::Tensor cut(const at::Tensor& gathered) const;
    template <typename T>
    [[nodiscard]] std::vector<T> cut(std::vector<T> gathered) const {
      if (kept.empty()) return gathered;
      std::vector<T> rows;
      for (const auto& range : kept) {
        rows.insert(rows.end(), std::make_move_iterator(gathered.begin() + range.begin),
                    std::make_move_iterator(gathered.begin() + range.end));
      }
      return rows;
    }
  };
  [[nodiscard]] MetricRows metric_rows() const;
  // Of tensors. Collective on the last step of a loader that does not fill up: there they were padded to equal sizes.
  [[nodiscard]] MetricRows tensor_metric_rows() const;
  // Samples of this rank's batch that are no duplicates.
  [[nodiscard]] std::optional<std::int64_t> num_real_rows() const;
  template <RowTree T>
  std::remove_cvref_t<T> gather_rows_for_metrics(const T& tree) const {
    const auto rows = tensor_metric_rows();
    for_each_tensor(tree, [&](const at::Tensor& tensor) {
      const auto num_rows = tensor.dim() > 0 ? std::optional(tensor.size(0)) : std::nullopt;
      rows.check(rows.fit(num_rows), num_rows);
    });
    verify("gather_for_metrics", tree);
    auto result = tree;
    detail::for_each_rows(result, [&](auto& leaf) {
      if constexpr (TensorLeaf<decltype(leaf)>) {
        leaf = rows.cut(operations::gather(data_parallel_.group, leaf));
      } else {
        leaf = gather_list_for_metrics(leaf);
      }
    });
    return result;
  }
  template <Tree T>
  std::vector<T> gather_list_for_metrics(const std::vector<T>& list) const {
    const auto rows = metric_rows();
    std::vector<T> all;
    const bool fits = rows.fit(static_cast<std::int64_t>(list.size()));
    for (auto& [of_rank, its_fits] : detail::gather_trees(data_parallel_.group, device(), std::pair(list, fits))) {
      rows.check(its_fits,
                 static_cast<std::int64_t>(of_rank.size()));  // every rank sees what each thinks: all throw or none
      all.insert(all.end(), std::make_move_iterator(of_rank.begin()), std::make_move_iterator(of_rank.end()));
    }
    return rows.cut(std::move(all));
  }
  void print_line(const std::string& line) const;
  [[nodiscard]] std::optional<Autocast::Options> autocast_options(const AutocastKwargs& kwargs) const;
  [[nodiscard]] std::shared_ptr<const Float8Layers> float8_layers(const torch::nn::Module& module) const;

  AcceleratorOptions options_;
  RankContext* context_;
  std::string mixed_precision_;
  ResolvedPlugin plugin_;
  bool has_model_of_plugin_ = false;
  std::shared_ptr<DeepSpeedObjects> deepspeed_objects_ = std::make_shared<DeepSpeedObjects>();
  std::optional<sharded::ShardGroups> shard_groups_;  // of the first model that is sharded
  DataParallel data_parallel_;
  TrainingState training_;
  std::shared_ptr<Checkpointing> checkpointing_;
  std::shared_ptr<Trackers> trackers_;
  std::optional<Group> debug_group_;
  bool trigger_ = false;
  at::Tensor global_grad_norm_;  // that DeepSpeed's step clipped last
};

}  // namespace accel
