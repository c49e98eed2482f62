// Which state goes into which file. Values that Python reads need its types (tuple, Counter, int keys); the path tables
// below list where. Our own additions are under keys that Accelerate ignores.
#include "reference/training_state/state_files.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <filesystem>

#include "reference/checkpoint/python_random.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/files/sha256.hpp"
#include "reference/mesh/axes.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/training_state/distributed_state.hpp"
#include "reference/training_state/registered_state.hpp"
#include "reference/training_state/shard_files.hpp"

namespace accel::checkpoint {
namespace {

// Accelerate's naming: the first has no number. Source: accelerate/checkpointing.py, save_accelerator_state.
std::string numbered(const std::string& name, std::size_t index, const std::string& ending) {
  return index == 0 ? name + ending : fmt::format("{}_{}{}", name, index, ending);
}

// A Value shares its tensors when it is copied. An asynchronous save needs tensors that training does not change.
Value copied_value(const Value& value) {
  if (value.is<at::Tensor>()) {
    const auto& tensor = value.as<at::Tensor>();
    return tensor.defined() ? tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true)
                            : tensor;
  }
  if (value.is<Value::List>()) {
    Value::List list;
    for (const auto& entry : value.as<Value::List>()) list.push_back(copied_value(entry));
    return list;
  }
  if (value.is<Value::Dict>()) {
    Value::Dict dict;
    for (const auto& [key, entry] : value.as<Value::Dict>()) dict.emplace(key, copied_value(entry));
    return dict;
  }
  return value;
}

// State that differs between ranks: gradients of an open accumulation window, which are not reduced yet, and buffers,
// which DDP copies from rank 0 only in the next forward.
NamedTensors rank_tensors(const TrainingState& state, const RankContext& context) {
  NamedTensors tensors;
  for (std::size_t index = 0; index < state.models.size(); ++index) {
    const auto& module = state.models[index]->module();
    for (const auto& item : module->named_parameters()) {
      const auto& gradient = item.value().grad();
      // With sync_gradients the window is complete: the gradients have been used, or will be recomputed.
      if (!gradient.defined() || context.gradient_state.sync_gradients) continue;
      const auto name = name_of_gradient(index, item.key());
      if (gradient.is_sparse()) {
        const auto coalesced = gradient.coalesce();
        tensors.emplace_back(name + kIndices, coalesced.indices());
        tensors.emplace_back(name + kValues, coalesced.values());
      } else {
        tensors.emplace_back(name, gradient);
      }
    }
    for (const auto& item : module->named_buffers()) {
      if (context.rank > 0) tensors.emplace_back(name_of_buffer(index, item.key()), item.value());
    }
  }
  return tensors;
}

// Where other ranks find the batches of an open accumulation window, whose gradients they cannot load: in the loader
// whose loop is open, else in the one whose loop was left.
Value open_window(const TrainingState& state, const RankContext& context) {
  const auto& gradients = context.gradient_state;
  const bool is_any_read = std::any_of(state.loaders.begin(), state.loaders.end(), [](const auto& entry) {
    const auto loader = entry.lock();
    return loader && loader->is_being_read();
  });
  Value::List loaders;
  for (const auto& entry : state.loaders) {
    const auto loader = entry.lock();
    const bool is_candidate = loader && (is_any_read ? loader->is_being_read() : loader->state().pass.has_value());
    loaders.emplace_back(is_candidate ? loader->units_per_step() : std::int64_t{0});
  }
  const std::int64_t count = gradients.sync_gradients ? 0 : state.step % gradients.plugin.num_steps.value_or(1);
  return Value::Dict{{"num_micro_batches", count}, {"units_per_step", std::move(loaders)}};
}

// "random_state" and "numpy_random_seed" exist for Python only: loading a checkpoint there restores its generators.
// They are derived from the seed. kOurs holds what Accelerate does not save.
Value random_states(const TrainingState& state, const RankContext& context, Value::List sync_states) {
  auto generator = context.generator;
  Value::List skipped;
  for (const auto& optimizer : state.optimizers) skipped.emplace_back(optimizer.step_was_skipped());
  Value::Dict states{{"step", state.step},
                     {"random_state", python_random_state(generator.current_seed())},
                     {"numpy_random_seed", numpy_random_state(generator.current_seed())},
                     {"torch_manual_seed", generator.get_state()},
                     {kOurs, Value::Dict{{"window", state.path->window().state_dict()},
                                         {"sync_gradients", context.gradient_state.sync_gradients},
                                         {"open_window", open_window(state, context)},
                                         {"skipped", std::move(skipped)},
                                         {"mesh", describe(state)},
                                         {"models", std::move(sync_states)}}}};
  if (!context.device.is_cpu()) states["torch_cuda_manual_seed"] = Value::List{device_generator(context).get_state()};
  return states;
}

// An optimizer may step parameters of several models, so all models determine one form.
OptimizerForm form_of_optimizers(const TrainingState& state) {
  const bool is_whole = std::all_of(state.models.begin(), state.models.end(),
                                    [](const auto& model) { return model->form().is_complete(); });
  return is_whole ? OptimizerForm::kWhole : OptimizerForm::kPieces;
}

// Whether optimizers are saved as distributed checkpoints. LOCAL_STATE_DICT has a form of its own.
bool has_distributed_optimizers(const TrainingState& state) {
  const auto has_type = [&](const std::string& type) {
    return std::any_of(state.models.begin(), state.models.end(),
                       [&](const auto& model) { return model->form().state_dict_type == type; });
  };
  return has_type(kShardedStateDict) && !has_type("LOCAL_STATE_DICT");
}

// The file of a model's complete weights, with Accelerate's name. safetensors cannot store a tensor twice, so tied
// weights are written once.
StateFile file_of_weights(std::size_t index, const ParallelModel& model, const NamedTensors& weights,
                          bool safe_serialization) {
  if (model.form().has_fsdp_file_names) return {file_of_full_fsdp_model(index), weights};
  return {file_of_model(index, safe_serialization), safe_serialization ? deduplicate_shared(weights).tensors : weights};
}

const TorchFileOptions kOptimizerTypes{.types = {{"state", PythonType::kIntegerKeys},
                                                 {"param_groups/*/betas", PythonType::kTuple},
                                                 {"param_groups/*/etas", PythonType::kTuple},
                                                 {"param_groups/*/step_sizes", PythonType::kTuple}}};
// With a sharded model the keys of "state" are parameter names, as in FSDP checkpoints; otherwise they are integers.
TorchFileOptions types_of_optimizer(const TrainingState& state) {
  auto types = kOptimizerTypes;
  const bool has_names = std::any_of(state.models.begin(), state.models.end(), [](const auto& model) {
    return model->is_sharded() || model->layouts().stages() != nullptr;
  });
  if (has_names) types.types.erase("state");
  return types;
}

// The milestones of a MultiStepLR, which may be nested in a SequentialLR or ChainedScheduler. Python stores them as a
// Counter and looks up integers in it, so string keys would never match. Nesting is covered up to a fixed depth.
const TorchFileOptions kSchedulerTypes = [] {
  constexpr int kDeepest = 4;
  TorchFileOptions options;
  std::string place;
  for (int depth = 0; depth <= kDeepest; ++depth, place += "_schedulers/*/")
    options.types[place + "milestones"] = PythonType::kCounter;
  return options;
}();

const TorchFileOptions kRandomTypes{.types = {{"random_state", PythonType::kTuple},
                                              {"random_state/1", PythonType::kTuple},
                                              {"numpy_random_seed", PythonType::kTuple}}};

// Adds the entries that Python's schedules store in parameter groups ("initial_lr" and others) and read from them on
// resume.
Value with_entries_of_schedules(const Value& optimizer_state, const torch::optim::Optimizer& optimizer,
                                const TrainingState& state) {
  auto entries = optimizer_state.as<Value::Dict>();
  auto groups = entries.at("param_groups").as<Value::List>();
  for (const auto& schedule : state.schedulers) {
    if (&schedule.scheduler().optimizer() != &optimizer) continue;
    for (const auto& [key, values] : schedule.scheduler().group_entries()) {
      for (std::size_t group = 0; group < std::min(groups.size(), values.size()); ++group) {
        auto with_entry = groups[group].as<Value::Dict>();
        with_entry.emplace(key, values[group]);
        groups[group] = std::move(with_entry);
      }
    }
  }
  entries["param_groups"] = std::move(groups);
  return entries;
}

// Moves sharded state into per-rank files and returns the optimizer states that rank 0 writes. Collective.
std::vector<Value> add_optimizer_shards(std::vector<StateFile>& files, const TrainingState& state,
                                        RankContext& context) {
  std::vector<Value> optimizers;
  for (std::size_t i = 0; i < state.optimizers.size(); ++i) {
    std::vector<TensorPart> pieces;
    auto remaining = with_entries_of_schedules(
        state_dict_of(state.optimizers[i].optimizer(), state, context, form_of_optimizers(state), pieces),
        state.optimizers[i].optimizer(), state);
    if (has_distributed_optimizers(state)) {
      add_distributed_optimizer(files, i, remaining, pieces, context);
      continue;
    }
    optimizers.push_back(std::move(remaining));
    if (!pieces.empty()) files.push_back(file_of_pieces(file_of_shard(kOptimizerShards, i, context.rank), pieces));
  }
  return optimizers;
}

// Collective.
void add_model_shards(std::vector<StateFile>& files, const TrainingState& state, RankContext& context) {
  for (std::size_t i = 0; i < state.models.size(); ++i) {
    const auto& model = *state.models[i];
    if (model.form().is_complete()) continue;
    const auto pieces = model.parts();
    if (model.form().state_dict_type == kShardedStateDict)
      add_distributed_model(files, i, model, pieces, context);
    else if (!pieces.empty())
      files.push_back(file_of_pieces(file_of_shard(kModelShards, i, context.rank), pieces));
  }
}

// The files that only one process writes.
void add_shared_files(std::vector<StateFile>& files, TrainingState& state, const Weights& weights,
                      const std::vector<Value>& optimizers, const std::vector<std::function<Value()>>& registered,
                      bool safe_serialization) {
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const auto& model = *state.models[i];
    if (model.form().is_complete()) files.push_back(file_of_weights(i, model, weights[i], safe_serialization));
  }
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    files.push_back({file_of_optimizer(i), optimizers[i], types_of_optimizer(state)});
  }
  for (std::size_t i = 0; i < state.schedulers.size(); ++i)
    files.push_back({file_of_scheduler(i), state.schedulers[i].state_dict(), kSchedulerTypes});
  if (auto* scaler = state.path->scaler()) files.push_back({kScalerFile, scaler->state_dict()});
  for (std::size_t i = 0; i < registered.size(); ++i) files.push_back({file_of_custom(i), registered[i]()});
}

// The files of each rank. A loader that the program has destroyed leaves a gap in the numbering, so that the others
// keep their index.
void add_rank_files(std::vector<StateFile>& files, const TrainingState& state, const RankContext& context,
                    Value::List sync_states) {
  for (std::size_t i = 0; i < state.loaders.size(); ++i) {
    if (const auto loader = state.loaders[i].lock())
      files.push_back({file_of_loader(i, context.rank), to_value(loader->state())});
  }
  if (auto tensors = rank_tensors(state, context); !tensors.empty())
    files.push_back({file_of_rank_tensors(context.rank), std::move(tensors)});
  files.push_back(
      {file_of_random_states(context.rank), random_states(state, context, std::move(sync_states)), kRandomTypes});
}

}  // namespace

std::string file_of_optimizer(std::size_t index) { return numbered("optimizer", index, ".bin"); }
std::string file_of_scheduler(std::size_t index) { return numbered("scheduler", index, ".bin"); }
std::string file_of_model(std::size_t index, bool safe_serialization) {
  return safe_serialization ? numbered("model", index, ".safetensors") : numbered("pytorch_model", index, ".bin");
}
std::string file_of_full_fsdp_model(std::size_t index) { return numbered("pytorch_model_fsdp", index, ".bin"); }
std::string file_of_custom(std::size_t index) { return fmt::format("custom_checkpoint_{}.pkl", index); }
std::string file_of_loader(std::size_t index, int rank) {
  return numbered("dl_state_dict", index, rank == 0 ? ".bin" : fmt::format("_rank{}.bin", rank));
}
std::string file_of_random_states(int rank) { return fmt::format("random_states_{}.pkl", rank); }
std::string file_of_rank_tensors(int rank) { return fmt::format("rank_tensors_{}.safetensors", rank); }
std::string name_of_gradient(std::size_t model, const std::string& name) {
  return fmt::format("gradient.{}.{}", model, name);
}
std::string name_of_buffer(std::size_t model, const std::string& name) {
  return fmt::format("buffer.{}.{}", model, name);
}

Weights weights_of(const TrainingState& state) {
  Weights weights;
  for (const auto& model : state.models) weights.push_back(model->weights());
  return weights;
}

bool is_of_accel(const std::string& folder) {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    if (entry.path().filename().string().starts_with("random_states_"))
      return read_torch_file(entry.path().string()).contains(kOurs);
  }
  return false;
}

std::string describe(const TrainingState& state) {
  const auto& mesh = state.mesh;
  int data_parallel = 1;
  std::string others;
  for (const auto& axis : mesh_axes()) {
    const auto size = mesh.*axis.size;
    if (axis.is_data_parallel())
      data_parallel *= size;
    else if (size > 1)
      others += fmt::format(" x {} {}", axis.name, size);
  }
  Sha256 cut;
  bool has_stages = false;
  for (const auto& model : state.models) {
    if (const auto* stages = model->layouts().stages()) {
      has_stages = true;
      for (const auto& entry : stages->entries) {
        const auto text = fmt::format("{} {};", entry.name, fmt::join(entry.ranks, ","));
        cut.update(text.data(), text.size());
      }
    }
  }
  if (has_stages) others += fmt::format(" (stages {})", cut.hex().substr(0, 8));
  return fmt::format("dp {}{}", data_parallel, others);
}

std::vector<StateFile> files_of_rank(TrainingState& state, RankContext& context, const Weights& weights,
                                     StateFileOptions options) {
  const bool is_main = context.rank == 0 || (options.save_on_each_node && context.local_rank == 0);
  static_cast<void>(state.path->scaler());  // performs a pending scale update, which belongs to the saved state
  Value::List sync_states;
  // The collective calls come first and run on all ranks; only then do ranks take different branches.
  for (const auto& model : state.models) sync_states.push_back(model->sync_state());
  std::vector<StateFile> files;
  const auto optimizers = add_optimizer_shards(files, state, context);
  add_model_shards(files, state, context);
  const auto registered = registered_states(state, context);
  if (is_main) add_shared_files(files, state, weights, optimizers, registered, options.safe_serialization);
  add_rank_files(files, state, context, std::move(sync_states));
  return files;
}

StateFile copied(const StateFile& file) {
  auto copy = file;
  if (auto* value = std::get_if<Value>(&copy.content)) *value = copied_value(*value);
  if (auto* items = std::get_if<std::vector<DistributedItem>>(&copy.content)) {
    for (auto& item : *items) item.value = copied_value(item.value);
  }
  if (auto* tensors = std::get_if<NamedTensors>(&copy.content)) {
    for (auto& [name, tensor] : *tensors)
      tensor = tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
  }
  return copy;
}

void write(Files& files, const std::string& folder, const StateFile& file) {
  const auto path = folder + "/" + file.name;
  if (const auto inner = file.name.rfind('/'); inner != std::string::npos)
    files.make_folder(folder + "/" + file.name.substr(0, inner));
  if (const auto* value = std::get_if<Value>(&file.content)) {
    write_torch_file(files, path, *value, file.types);
  } else if (const auto* items = std::get_if<std::vector<DistributedItem>>(&file.content)) {
    write_items(files, path, *items, file.types);
  } else if (const auto* content = std::get_if<FileBytes>(&file.content)) {
    write_atomically(files, path, content->bytes);
  } else if (const auto& tensors = std::get<NamedTensors>(file.content); file.name.ends_with(".safetensors")) {
    write_safetensors(files, path, tensors, file.metadata);
  } else {
    write_torch_file(files, path, tensors);
  }
}

}  // namespace accel::checkpoint
