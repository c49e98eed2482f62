#include "reference/accelerator/preparation.hpp"

#include <torch/nn/module.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <set>

#include "reference/accelerator/mesh_groups.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/config/plugins/deepspeed_file.hpp"
#include "reference/core/errors.hpp"
#include "reference/offload/streamed_model.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/parallel/same_model.hpp"
#include "reference/parallel/sync_batch_norm.hpp"
#include "reference/precision/master_weights.hpp"
#include "reference/prepared/registered_buffers.hpp"
#include "reference/prepared/sharded_parallel_model.hpp"
#include "reference/prepared/unsharded_model.hpp"
#include "reference/state/warnings.hpp"

namespace accel {
namespace {

// An optimizer that has stepped holds state of unsharded parameters, which fits no shard. One that is not elementwise
// would need communication inside the optimizer.
void check_can_be_sharded(const torch::optim::Optimizer& optimizer) {
  const auto problem = optim::sharding_problem(optimizer);
  check_state(problem.empty(), "prepare: {}; use another optimizer, or train without fsdp_plugin and deepspeed_plugin",
              problem);
  check_state(
      !optim::has_stepped(optimizer),
      "prepare: the optimizer has already stepped, and its state does not fit a sharded model; prepare both before the "
      "first step");
}

// LibTorch's optimizers start a kernel per operation and parameter, which takes longer to start than to run on a GPU.
void warn_of_slow_optimizer(const torch::optim::Optimizer& optimizer, const RankContext& context) {
  static const std::set<std::string> kWithCounterpart{"Adagrad", "Adam", "AdamW", "RMSprop", "SGD"};
  constexpr std::string_view kNamespace = "torch::optim::";
  const auto type = c10::demangle(typeid(optimizer).name());
  const auto& parameters = optimizer.param_groups().front().params();
  const bool steps_on_host = parameters.empty() || parameters.front().is_cpu();  // also: offloaded shards
  if (steps_on_host || context.rank != 0 || !type.starts_with(kNamespace)) return;
  const auto name = type.substr(kNamespace.size());
  if (!kWithCounterpart.contains(name)) return;
  warn_once(context,
            fmt::format("prepare: {} steps one parameter after another, which is slow on {}; use accel::optim::{} of "
                        "<accel/optim.hpp>, which steps all of them together",
                        type, context.device.str(), name));
}

// Known from the modules' options only: the reducer must choose dense or sparse buckets before the first backward.
std::vector<at::Tensor> parameters_with_sparse_gradients(const torch::nn::Module& model) {
  std::vector<at::Tensor> parameters;
  for (const auto& module : model.modules()) {
    if (const auto* embedding = module->as<torch::nn::EmbeddingImpl>();
        embedding != nullptr && embedding->options.sparse())
      parameters.push_back(embedding->weight);
    if (const auto* bag = module->as<torch::nn::EmbeddingBagImpl>(); bag != nullptr && bag->options.sparse())
      parameters.push_back(bag->weight);
  }
  return parameters;
}

NamedTensors parameters_once(const torch::nn::Module& module) {
  NamedTensors parameters;
  for (const auto& item : module.named_parameters()) parameters.emplace_back(item.key(), item.value());
  return unique_tensors(std::move(parameters));
}

// In training a batch norm's backward pass reads the statistics of its batch; in evaluation they do not change.
bool is_batch_norm(const torch::nn::Module& module) {
  return module.as<torch::nn::BatchNorm1dImpl>() != nullptr || module.as<torch::nn::BatchNorm2dImpl>() != nullptr ||
         module.as<torch::nn::BatchNorm3dImpl>() != nullptr;
}

BufferSync::Buffers buffers_once(const torch::nn::Module& module) {
  BufferSync::Buffers buffers;
  NamedTensors named;
  for (const auto& item : module.named_buffers()) named.emplace_back(item.key(), item.value());
  for (auto& [name, buffer] : unique_tensors(std::move(named))) {
    buffers.names.push_back(name);
    buffers.tensors.push_back(buffer);
  }
  for (const auto& part : module.modules()) {
    if (!is_batch_norm(*part)) continue;
    for (const auto& buffer : part->buffers(/*recurse=*/false)) buffers.statistics.push_back(buffer);
  }
  return buffers;
}

std::vector<ParameterLayout> layouts_of(const NamedTensors& parameters, const ParameterLayouts& layouts) {
  std::vector<ParameterLayout> own;
  for (const auto& [name, parameter] : parameters) {
    const auto* divided = layouts.of_layer(name);
    own.push_back(divided == nullptr ? ParameterLayout{.sizes = parameter.sizes().vec()} : divided->layout);
  }
  return own;
}

std::vector<at::Tensor> all_of(const NamedTensors& parameters) {
  std::vector<at::Tensor> all;
  for (const auto& [name, parameter] : parameters) all.push_back(parameter);
  return all;
}

std::vector<at::Tensor> trained(const NamedTensors& parameters) {
  std::vector<at::Tensor> trained;
  for (const auto& [name, parameter] : parameters) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return trained;
}

// Source: torch/nn/modules/module.py, Module.to(memory_format).
void store_channels_last(torch::nn::Module& module) {
  for (auto tensors : {module.parameters(), module.buffers()}) {
    for (auto& tensor : tensors) {
      if (tensor.dim() == 4) tensor.set_data(tensor.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}

// Under mixed precision the optimizer steps float32 parameters while units compute in the lower precision. Source:
// accelerate/accelerator.py, prepare_model; accelerate/utils/fsdp_utils.py, fsdp2_prepare_model.
void raise_to_float32(const NamedTensors& parameters) {
  for (const auto& [name, parameter] : parameters) {
    const bool is_low = parameter.is_floating_point() && parameter.element_size() < 4;
    if (is_low && parameter.requires_grad()) parameter.set_data(parameter.detach().to(at::kFloat));
  }
}

}  // namespace

std::shared_ptr<ParallelModel> Preparation::make_parallel(const std::shared_ptr<torch::nn::Module>& module,
                                                          PrepareModelOptions options) {
  check_can_be_prepared(verify_device_map(*module));
  if (mesh_sizes()) set_default_groups_of_norms(*module, mesh()["dp_cp"]);
  const auto before = std::ranges::find_if(training().models, [&](const auto& own) { return own->module() == module; });
  const bool is_again = before != training().models.end();
  if (is_again && !options.evaluation_mode) {
    (*before)->retire();
    training().path->remove_model(**before);
  }
  RegisteredBuffers buffers(*module);
  auto model = shards() && !options.evaluation_mode ? make_sharded(module) : make_unsharded(module, options);
  buffers.count_prepared();
  model->watch_buffers(std::move(buffers));
  if (context_->listener && !is_again) context_->listener->add_model(module);
  context_->has_prepared = true;
  if (!is_again)
    training().models.push_back(model);
  else if (!options.evaluation_mode)
    *before = model;
  return model;
}

// Float8 layers are chosen here, before sharding replaces modules: the recipe selects them by their names.
ParallelModel::Options Preparation::model_options(const torch::nn::Module& module, bool autocasts) const {
  ParallelModel::Options options{.listener = context_->listener, .peers = mesh()["tp"]};
  if (mixed_precision() == "fp8")
    options.float8_layers = std::make_shared<const Float8Layers>(module, *settings().ao_recipe_kwargs);
  if (autocasts) options.autocast = autocast_options(settings().autocast_kwargs);
  return options;
}

// Source: accelerate/accelerator.py, prepare.
void Preparation::check_placement(const std::vector<bool>& placements, std::size_t num_objects) const {
  check_argument(placements.empty() || placements.size() == num_objects,
                 "prepare: device_placement has {} entries for {} objects; expected one per object", placements.size(),
                 num_objects);
  check_argument(
      placements.empty() || !shards(),
      "prepare: device_placement per object excludes fsdp_plugin and deepspeed_plugin, which place what they "
      "shard; omit it");
}

void Preparation::place(torch::nn::Module& module) {
  // On a change of device LibTorch may replace a parameter's data but never its TensorImpl, so optimizers keep their
  // references. Their state tensors stay behind unless they are moved too.
  module.to(context_->device);
  const SteppedValues values(training().path->models());
  for (const auto& prepared : training().optimizers) optim::move_state_to_parameters(prepared.optimizer());
}

// Source: accelerate/accelerator.py, prepare.
bool Preparation::is_spread(const torch::nn::Module& module) { return offload::is_spread(module); }

void Preparation::check_can_be_prepared(bool is_spread) const {
  check_argument(!is_spread || distributed_type() == DistributedType::kNo,
                 "prepare: a model that has been loaded with a device map of several entries, such as "
                 "device_map \"auto\", can't be trained in any distributed mode; start one process "
                 "(--num_processes=1), or load the complete model on every rank");
}

std::unique_ptr<DistributedDataParallel> Preparation::make_ddp(ModelTensors tensors, const char* group) const {
  auto kwargs = settings().ddp_kwargs;
  kwargs.gradient_as_bucket_view = kwargs.gradient_as_bucket_view.value_or(!context_->device.is_cpu());
  return std::make_unique<DistributedDataParallel>(std::move(tensors), mesh()[group], kwargs, context_->listener);
}

std::shared_ptr<ParallelModel> Preparation::make_unsharded(const std::shared_ptr<torch::nn::Module>& module,
                                                           PrepareModelOptions options) {
  if (places(options.device_placement) && !verify_device_map(*module)) place(*module);
  // A tensor shared by several modules counts once; otherwise its gradient would be reduced twice.
  ModelTensors tensors{.parameters = parameters_once(*module), .buffers = buffers_once(*module)};
  auto parallel_options = model_options(*module, /*autocasts=*/true);
  parallel_options.is_trained = !options.evaluation_mode;
  parallel_options.channels_last = settings().channels_last;
  if (settings().channels_last) store_channels_last(*module);
  ParameterLayouts layouts(*module);
  if (options.evaluation_mode)
    return std::make_shared<UnshardedModel>(module, std::move(layouts), std::move(parallel_options));
  const auto parameters = trained(tensors.parameters);
  check_layouts(layouts, !parameters.empty());
  for (const auto& optimizer : training().optimizers) check_steps_parts(optimizer.optimizer(), layouts);
  if (!parameters.empty()) copy_complete_tensors_of_first_peer(tensors, layouts);
  if (settings().master_weights) {
    parallel_options.masters = std::make_shared<MasterWeights>(parameters);
    tensors.masters = parallel_options.masters->masters();
  }
  training().path->add_parameters(all_of(tensors.parameters));
  // As in accelerate/accelerator.py, prepare_model: CPU ranks always use DDP, even in a group of one. It does nothing
  // before a parameter requires a gradient.
  if (distributed_type() != DistributedType::kMultiCpu && !use_distributed() && !context_->joins_elastic) {
    auto model = std::make_shared<UnshardedModel>(module, std::move(layouts), std::move(parallel_options));
    training().path->add_model(model);
    return model;
  }
  ModelTensors experts;
  std::tie(experts.parameters, tensors.parameters) = layouts.split_experts(tensors.parameters);
  tensors.sparse = parameters_with_sparse_gradients(*module);
  tensors.layouts = layouts_of(tensors.parameters, layouts);
  if (layouts.stages() != nullptr) tensors.stage_rank = layouts.stages()->group.rank();
  experts.layouts = layouts_of(experts.parameters, layouts);
  auto ddp = make_ddp(std::move(tensors), "dp_cp");
  auto of_experts = experts.parameters.empty() ? nullptr : make_ddp(std::move(experts), "expert_dp");
  auto model = std::make_shared<ReplicatedModel>(
      module, std::move(layouts), std::move(parallel_options), std::move(ddp), std::move(of_experts),
      /*has_own_buckets=*/!settings().ddp_kwargs.gradient_as_bucket_view.value_or(!context_->device.is_cpu()));
  training().path->add_model(model);
  return model;
}

std::shared_ptr<ParallelModel> Preparation::make_unwrapped(const ParallelModel& model, UnwrapOptions options) {
  check_argument(options.keep_fp32_wrapper,
                 "unwrap_model: keep_fp32_wrapper false returns the module itself; call unwrap_model(model)");
  check_state(!model.is_sharded(),
              "unwrap_model: the forward of a sharded model gathers its parameters, so it needs the prepared handle; "
              "call that, or keep gathered_parameters(model) alive and call unwrap_model(model)");
  auto own = model.options();
  own.is_trained = false;
  own.masters.reset();
  return std::make_shared<UnshardedModel>(model.module(), model.layouts(), std::move(own));
}

std::shared_ptr<ParallelModel> Preparation::make_sharded(const std::shared_ptr<torch::nn::Module>& module) {
  // All checks come before the first collective (make_shard_groups), so every rank throws alike.
  check_state(!plugin().steps_in_backward || !std::exchange(shared().has_model_of_plugin, true),
              "prepare: this is the second model, and deepspeed_plugin supports one model per Accelerator; call "
              "select_deepspeed_plugin to prepare another model with another plugin");
  // Sharding replaces the parts of a Sequential (modules/call.cpp) and puts them back on destruction. A Sequential on
  // the stack may be destroyed before that.
  check_argument(!detail::is_borrowed(module) || module->as<torch::nn::SequentialImpl>() == nullptr,
                 "prepare: a module on the stack that derives from SequentialImpl cannot be sharded; create it by "
                 "std::make_shared");
  const auto parameters = parameters_once(*module);
  // Optimizers that were prepared before the model hold its unsharded parameters and must restart on the shards.
  auto optimizers = training().optimizers;
  std::erase_if(optimizers, [&](const auto& optimizer) { return !optimizer.steps_any_of(module->parameters()); });
  for (const auto& optimizer : optimizers) check_can_be_sharded(optimizer.optimizer());
  ParameterLayouts layouts(*module);
  check_layouts(layouts, !trained(parameters).empty());
  if (!shard_groups_) {
    shard_groups_ = std::make_shared<const sharded::ShardGroups>(make_shard_groups(
        *context_, plan_shard_groups(mesh_sizes(), place_of(*context_), plugin().sharding->hybrid), mesh().config()));
  }
  const auto [experts, others] = layouts.split_experts(parameters);
  check_same_model(mesh()["dp_cp"], others);
  if (!experts.empty()) check_same_model(mesh()["expert_dp"], experts);
  copy_complete_tensors_of_first_peer({.parameters = parameters, .buffers = buffers_once(*module)}, layouts);
  auto options = model_options(*module, plugin().sharding->autocasts);
  if (mixed_precision() != "no") raise_to_float32(parameters);
  context_->hint =
      "outside model(...) the parameters of a sharded model are only this rank's shards; to compute with them in other "
      "members, such as model->generate(...), keep `const auto full = accelerator.gathered_parameters(model);` alive "
      "around the call, on every rank";
  auto sharding = *plugin().sharding;
  sharding.is_stage = layouts.stages() != nullptr;
  auto model = std::make_shared<ShardedParallelModel>(
      module, std::move(layouts), std::move(options),
      std::make_unique<sharded::ShardedModel>(module, *shard_groups_, std::move(sharding), context_->device));
  training().path->add_parameters(all_of(parameters));
  training().path->add_model(model);
  for (const auto& optimizer : optimizers) training().path->restart(optimizer.optimizer());
  return model;
}

// Accelerate rejects this too: with both, one of the two would be ignored silently. Source: accelerate/accelerator.py,
// _prepare_deepspeed.
void Preparation::check_not_in_deepspeed_file(bool is_file_backed, const char* what, const char* dummy) const {
  check_config(!is_file_backed,
               "{}: the file defines {}, and the program prepares one too; remove it from the file, or prepare an "
               "accel::{}",
               deepspeed_file().value_or(""), what, dummy);
}

AcceleratedOptimizer Preparation::prepare_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                    std::optional<bool> device_placement) {
  if (const auto file = deepspeed_file())
    check_not_in_deepspeed_file(optimizer_section(*file).has_value(), "an optimizer", "DummyOptim");
  return add_optimizer(std::move(optimizer), device_placement);
}

AcceleratedOptimizer Preparation::prepare_optimizer(const DummyOptim& dummy) {
  auto& optimizer = deepspeed_objects_->optimizer_for(dummy, deepspeed_file().value_or(""));
  return add_optimizer({deepspeed_objects_, &optimizer}, std::nullopt);
}

AcceleratedOptimizer Preparation::add_optimizer(std::shared_ptr<torch::optim::Optimizer> optimizer,
                                                Placement placement) {
  for (const auto& model : training().models) check_steps_parts(*optimizer, model->layouts());
  warn_of_slow_optimizer(*optimizer, *context_);
  // LibTorch's optimizers step a shared parameter as often as its group lists it, PyTorch's reject duplicates.
  for (auto& group : optimizer->param_groups()) group.params() = unique_tensors(std::move(group.params()));
  if (shards()) check_can_be_sharded(*optimizer);
  // State from the constructor has the shapes and dtypes that the parameters had then.
  if (shards() || (settings().master_weights && !optim::has_stepped(*optimizer))) {
    training().path->restart(*optimizer);
  } else if (places(placement)) {
    const SteppedValues values(training().path->models());
    optim::move_state_to_parameters(*optimizer);
  }
  const auto before =
      std::ranges::find_if(training().optimizers, [&](const auto& own) { return &own.optimizer() == optimizer.get(); });
  if (before != training().optimizers.end()) return before->handle();
  return training()
      .optimizers.emplace_back(std::move(optimizer), *context_, training().path, plugin().steps_in_backward)
      .handle();
}

AcceleratedScheduler Preparation::prepare_scheduler(std::shared_ptr<LRScheduler> scheduler,
                                                    PrepareSchedulerOptions options) {
  if (const auto file = deepspeed_file())
    check_not_in_deepspeed_file(scheduler_section(*file).has_value(), "a scheduler", "DummyScheduler");
  return add_scheduler(
      std::move(scheduler),
      {.step_with_optimizer = options.step_with_optimizer.value_or(settings().step_scheduler_with_optimizer),
       .split_batches = split_batches(),
       .num_batches_per_step = data_parallel_size(),
       .samples_per_step = options.samples_per_step});
}

AcceleratedScheduler Preparation::prepare_scheduler(const DummyScheduler& dummy) {
  auto& scheduler = deepspeed_objects_->scheduler_for(dummy, deepspeed_file().value_or(""),
                                                      split_batches() ? 1 : data_parallel_size());
  return add_scheduler({deepspeed_objects_, &scheduler}, {.steps_in_backward = true});
}

AcceleratedScheduler Preparation::add_scheduler(std::shared_ptr<LRScheduler> scheduler, SchedulerOptions options) {
  // A schedule of an unprepared optimizer follows all prepared ones, as in accelerate/scheduler.py.
  auto optimizers = training().optimizers;
  std::erase_if(optimizers, [&](const auto& optimizer) { return &optimizer.optimizer() != &scheduler->optimizer(); });
  return training()
      .schedulers
      .emplace_back(std::move(scheduler), optimizers.empty() ? training().optimizers : optimizers, *context_,
                    training().path, options)
      .handle();
}

// Copied into the loader: later changes of the Accelerator's options, such as set_even_batches, affect new loaders
// only.
ShardOptions Preparation::shard_options(Placement placement) const {
  return {.context = context_,
          .data_parallel = data_parallel(),
          .config = settings().dataloader_config,
          .rng_types = settings().rng_types,
          .put_on_device = places(placement)};
}

void Preparation::warn_of_empty_pass(const detail::Loader& loader) const {
  if (!is_main_process() || loader.size() != 0 || loader.total_dataset_length() == 0) return;
  warn_once(*context_,
            fmt::format("prepare: the loader has no batch: its {} samples do not fill a batch on each of {} ranks, and "
                        "drop_last drops them; lower batch_size, or set drop_last: false",
                        loader.total_dataset_length(), data_parallel().size));
}

void Preparation::forget_prepared() {
  // The loss scale survives: Accelerate keeps its GradScaler in the Accelerator. So do objects registered for
  // checkpointing, which the program still owns.
  shared().has_model_of_plugin = false;
  auto path = make_gradient_pipeline();
  if (auto* scaler = path->scaler()) scaler->load_state_dict(training().path->scaler()->state_dict());
  training() = {.custom = std::move(training().custom), .path = std::move(path), .mesh = training().mesh};
}

}  // namespace accel
