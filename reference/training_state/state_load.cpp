// Loading of a checkpoint on one rank. Some objects can only be checked by loading them (optimizers, schedules, custom
// objects): these are loaded at once, with an undo. Everything else is checked first and changed in a commit.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/ranges.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <filesystem>

#include "reference/checkpoint/distributed/distributed_checkpoint.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/files/safetensors.hpp"
#include "reference/files/sha256.hpp"
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/rank_local/random.hpp"
#include "reference/sharded/memory_scope.hpp"
#include "reference/state/rng_sync.hpp"
#include "reference/training_state/distributed_state.hpp"
#include "reference/training_state/registered_state.hpp"
#include "reference/training_state/shard_files.hpp"
#include "reference/training_state/state_files.hpp"

namespace accel::checkpoint {
namespace {

namespace fs = std::filesystem;

// Without a manifest, as in Python's checkpoints, the files of random states show the number of ranks: one per rank.
int count_ranks(const std::string& folder) {
  int count = 0;
  while (fs::exists(folder + "/" + file_of_random_states(count))) ++count;
  return std::max(1, count);
}

// A model's tensors by name, from whichever format the folder contains.
std::map<std::string, StoredWeight> weights_in(const std::string& folder, std::size_t index) {
  const auto shards = folder + "/" + folder_of_shards(kModelShards, index);
  if (is_distributed_checkpoint(shards)) return distributed_weights(shards);
  if (fs::is_directory(shards)) return read_shards(shards);
  for (const auto& name : {file_of_model(index, true), file_of_model(index, false), file_of_full_fsdp_model(index)}) {
    if (fs::exists(folder + "/" + name)) return read_weights(folder + "/" + name);
  }
  throw CheckpointError(fmt::format("{}: missing: {}, {} or {}", folder, file_of_model(index, true),
                                    file_of_model(index, false), file_of_full_fsdp_model(index)));
}

// The seed of a rank that did not exist when the checkpoint was saved: derived from rank 0's state and the rank, so it
// is reproducible and differs between ranks.
std::uint64_t seed_of_new_rank(const at::Tensor& state_of_first, int rank) {
  Sha256 hash;
  hash.update(state_of_first.const_data_ptr(), state_of_first.nbytes());
  hash.update(&rank, sizeof rank);
  return std::stoull(hash.hex().substr(0, 16), nullptr, 16);
}

}  // namespace

// Random states come last: they hold the "models" list that refers to models by index, and rank tensors whose sizes
// depend on how the models were prepared. Gradients and buffers are loaded on commit, after the weights.
StateLoad::StateLoad(TrainingState& state, RankContext& context, std::string folder, std::optional<int> saved_ranks,
                     const std::vector<bool>& models, const LoadStateOptions& options)
    : state_(state),
      context_(context),
      folder_(std::move(folder)),
      saved_ranks_(saved_ranks ? *saved_ranks : count_ranks(folder_)) {
  try {
    saved_mesh_ = find_saved_mesh();
    dropped_ = window_to_drop(options);
    for (std::size_t i = 0; i < state_.models.size(); ++i) {
      if (models[i]) load_model(i);
    }
    for (std::size_t i = 0; i < state_.optimizers.size(); ++i) load_optimizer(i);
    for (std::size_t i = 0; i < state_.schedulers.size(); ++i) load_scheduler(i);
    for (std::size_t i = 0; i < state_.loaders.size(); ++i) load_loader(i);
    check_checkpoint(!dropped_ || dropped_->is_repeated,
                     "{}: it was saved inside an accumulation window of loader {}, which is not prepared now; prepare "
                     "the same loaders in the same order",
                     folder_, dropped_ ? dropped_->loader : 0);
    if (auto* scaler = state_.path->scaler()) load_scaler(*scaler);
    load_custom();
    load_random_states();
  } catch (const ConfigError& error) {  // from reading a file
    undo();
    throw CheckpointError(error.what());
  } catch (const ArgumentError& error) {  // from a value of an unexpected type
    undo();
    throw CheckpointError(fmt::format("{}: {}", folder_, error.what()));
  } catch (...) {
    undo();
    throw;
  }
}

StateLoad::~StateLoad() { undo(); }

// In reverse order, since a later object may depend on an earlier one (a schedule sets the optimizer's rates).
void StateLoad::undo() noexcept {
  for (auto undo = undos_.rbegin(); undo != undos_.rend(); ++undo) (*undo)();
  undos_.clear();
}

// After commit() the undo list is empty, so the destructor leaves the loaded state in place.
void StateLoad::commit() {
  const c10::NoGradGuard no_grad;
  for (const auto& act : commits_) act();
  undos_.clear();
}

Value StateLoad::read(const std::string& name) const {
  if (!fs::exists(path(name))) throw CheckpointError(fmt::format("{}: missing", path(name)));
  return read_torch_file(path(name));
}

// Every rank's random states have it.
std::optional<std::string> StateLoad::find_saved_mesh() const {
  const auto name = file_of_random_states(0);
  if (!fs::exists(path(name))) return std::nullopt;  // reported when random states are loaded
  const auto states = read(name);
  const auto has_mesh = states.contains(kOurs) && states.at(kOurs).contains("mesh");
  return has_mesh ? std::optional(states.at(kOurs).at("mesh").as<std::string>()) : std::nullopt;
}

// The meshes are named where they are the difference.
std::string StateLoad::saving_ranks() const {
  return saved_ranks_ == context_.world_size && saved_mesh_ ? fmt::format("{} ranks ({})", saved_ranks_, *saved_mesh_)
                                                            : fmt::format("{} ranks", saved_ranks_);
}
std::string StateLoad::loading_ranks() const {
  return saved_ranks_ == context_.world_size ? fmt::format("{} ranks ({})", saved_ranks_, describe(state_))
                                             : fmt::format("{} ranks", context_.world_size);
}

// A rank without trained parameters, as the first of a pipeline may be, has no gradients.
bool StateLoad::was_saved_inside_window() const {
  if (fs::exists(path(file_of_rank_tensors(0)))) return true;
  if (!fs::exists(path(file_of_random_states(0)))) return false;
  const auto states = read(file_of_random_states(0));
  if (!states.contains(kOurs) || !states.at(kOurs).contains("open_window")) return false;
  const auto& ours = states.at(kOurs);
  return !ours.at("sync_gradients").as<bool>() && ours.at("open_window").at("num_micro_batches").as<std::int64_t>() > 0;
}

// Each rank's gradients are those of its own batches, so that other ranks can only compute them again.
std::optional<StateLoad::SavedWindow> StateLoad::window_to_drop(const LoadStateOptions& options) const {
  if (has_same_ranks() || !was_saved_inside_window()) return std::nullopt;
  const auto what = fmt::format("{}: {} saved it inside an accumulation window, with unreduced gradients per rank",
                                folder_, saving_ranks());
  check_checkpoint(
      options.inside_window == "drop",
      "{}, which {} cannot load; resume with the same ranks and parallelism_config, or repeat the window's "
      "micro-batches with {{.inside_window = \"drop\"}}",
      what, loading_ranks());
  const auto states = read(file_of_random_states(0));
  const auto& ours = states.at(kOurs);
  check_checkpoint(ours.contains("open_window"), "{}, but not where the window began; it cannot be dropped", what);
  const auto& saved = ours.at("open_window");
  SavedWindow window{.num_micro_batches = saved.at("num_micro_batches").as<std::int64_t>()};
  check_checkpoint(window.num_micro_batches > 0,
                   "{}, but outside of accumulate, so that their batches are unknown; it cannot be dropped", what);
  int num_read = 0;
  const auto& units = saved.at("units_per_step").as<Value::List>();
  for (std::size_t i = 0; i < units.size(); ++i) {
    if (units[i].as<std::int64_t>() == 0) continue;
    ++num_read;
    window.loader = i;
    window.units_per_step = units[i].as<std::int64_t>();
  }
  check_checkpoint(num_read == 1, "{}, while {} loaders were being read; a window of exactly one can be repeated", what,
                   num_read);
  return window;
}

void StateLoad::load_model(std::size_t index) {
  auto& model = *state_.models[index];
  const auto weights = weights_in(folder_, index);
  const auto what = path(fmt::format("model {}", index));
  check_checkpoint(model.form().state_dict_type != "LOCAL_STATE_DICT" || has_same_ranks(),
                   "{}: saved by {}, and this run has {}; LOCAL_STATE_DICT requires the same ranks and "
                   "parallelism_config, SHARDED_STATE_DICT supports any",
                   what, saving_ranks(), loading_ranks());
  commits_.push_back(model.prepare_load(what, weights));
}

// A distributed checkpoint contains the complete state. Else optimizer.bin contains it, except for pieces in a folder.
SavedOptimizer StateLoad::saved_optimizer(std::size_t index) const {
  const auto shards = path(folder_of_shards(kOptimizerShards, index));
  if (is_distributed_checkpoint(shards)) return distributed_optimizer(shards);
  return {read(file_of_optimizer(index)),
          fs::is_directory(shards) ? read_shards(shards) : std::map<std::string, StoredWeight>()};
}

void StateLoad::load_optimizer(std::size_t index) {
  auto& optimizer = state_.optimizers[index].optimizer();
  // State is loaded in the dtype and on the device of the values that the optimizer steps.
  const auto load = [&optimizer, path = state_.path](const Value& loaded) {
    const SteppedValues values(path->models());
    optim::load_state_dict(optimizer, loaded);
  };
  undos_.emplace_back([load, before = optim::state_dict(optimizer)] { load(before); });
  const auto saved = saved_optimizer(index);
  // The loaded state must be allocated where the optimizer would allocate it, for example in files.
  const sharded::MemoryScope scope(state_.path->optimizer_memory());
  load(parts_of(saved.state, saved.shards, optimizer, state_));
}

void StateLoad::load_scheduler(std::size_t index) {
  auto& scheduler = state_.schedulers[index];
  undos_.emplace_back([&scheduler, before = scheduler.state_dict()] { scheduler.load_state_dict(before); });
  scheduler.load_state_dict(read(file_of_scheduler(index)));
}

// A scaler of this run needs the file; a file without a scaler (another precision) is ignored, as in Python.
void StateLoad::load_scaler(GradScaler& scaler) {
  undos_.emplace_back([&scaler, before = scaler.state_dict()] { scaler.load_state_dict(before); });
  scaler.load_state_dict(read(kScalerFile));
}

// Python's checkpoints contain no loader state, or that of torchdata's stateful loaders, which cannot be converted. In
// both cases the program itself must skip batches.
void StateLoad::load_loader(std::size_t index) {
  const auto loader = state_.loaders[index].lock();
  if (!loader || !fs::exists(path(file_of_loader(index, 0)))) return;
  auto saved = read(file_of_loader(index, 0));
  if (is_torchdata_loader_state(saved)) return;
  // Ranks that share a batch share one position in the data. So the state is looked up by the index among data-parallel
  // ranks, which does not depend on the mesh.
  const auto ranks_then = loader_state_of(saved).num_processes;
  if (const auto own = loader->state();
      own.num_processes > 0 && ranks_then == own.num_processes && saved_ranks_ >= ranks_then) {
    // Several ranks saved equal states for one position; the first of them is read.
    const auto name = file_of_loader(index, static_cast<int>(own.process_index * (saved_ranks_ / ranks_then)));
    if (!fs::exists(path(name))) return;
    saved = read(name);
  }
  auto position = loader_state_of(saved);
  if (dropped_ && dropped_->loader == index) {
    const auto problem = step_back(position, dropped_->num_micro_batches, dropped_->units_per_step);
    check_checkpoint(problem.empty(), "{}: the accumulation window in which it was saved cannot be repeated: {}",
                     folder_, problem);
    dropped_->is_repeated = true;
  }
  undos_.emplace_back([loader, before = loader->state()] { loader->load_state(before); });
  loader->load_state(position);
}

// A different number of objects is an error, as in accelerate/checkpointing.py, load_custom_state: they are matched by
// order only, and a missing one would shift all others.
void StateLoad::load_custom() {
  std::size_t there = 0;
  while (fs::exists(path(file_of_custom(there)))) ++there;
  if (there != state_.custom.size()) {
    throw CheckpointError(fmt::format(
        "{}: contains {} custom checkpoints, but {} objects are registered; register the same objects in the same "
        "order",
        folder_, there, state_.custom.size()));
  }
  for (std::size_t i = 0; i < there; ++i) {
    auto& custom = state_.custom[i];
    undos_.emplace_back([&custom, before = copied({"", custom.state_dict()})] {
      custom.load_state_dict(std::get<Value>(before.content));
    });
    load_registered(state_, i, read(file_of_custom(i)));
  }
}

// Other ranks all read rank 0's file, since positions in the window are equal on all ranks.
void StateLoad::load_random_states() {
  const auto states = read(file_of_random_states(has_same_ranks() ? context_.rank : 0));
  restore_generator(states);
  const auto repeated = dropped_ ? dropped_->num_micro_batches : 0;
  commits_.emplace_back(
      [this, step = static_cast<int>(states.at("step").as<std::int64_t>() - repeated)] { state_.step = step; });
  if (!states.contains(kOurs)) return;  // written by Python's Accelerate
  const auto& ours = states.at(kOurs);
  auto& window = state_.path->window();
  undos_.emplace_back([&window, before = window.state_dict()] { window.load_state_dict(before); });
  window.load_state_dict(ours.at("window"));
  if (dropped_) window.drop();
  commits_.emplace_back([this, syncs = dropped_ || ours.at("sync_gradients").as<bool>()] {
    context_.gradient_state.sync_gradients = syncs;
  });
  // step_was_skipped() is visible to the program, and schedules read it in the next step.
  const auto& skipped = ours.at("skipped").as<Value::List>();
  for (std::size_t i = 0; i < std::min(skipped.size(), state_.optimizers.size()); ++i) {
    commits_.emplace_back([&optimizer = state_.optimizers[i], was_skipped = skipped[i].as<bool>()] {
      optimizer.set_step_was_skipped(was_skipped);
    });
  }
  const auto& sync_states = ours.at("models").as<Value::List>();
  check_argument(sync_states.size() == state_.models.size(),
                 "{} models were saved, but {} are prepared; prepare the same models in the same order",
                 sync_states.size(), state_.models.size());
  drop_gradients();
  if (dropped_) return;
  for (std::size_t i = 0; i < sync_states.size(); ++i)
    commits_.emplace_back([&model = *state_.models[i], saved = sync_states[i]] { model.load_sync_state(saved); });
  load_rank_tensors(sync_states);
}

// Those of the program's own window, if it loads in the middle of one.
void StateLoad::drop_gradients() {
  for (const auto& model : state_.models) {
    commits_.emplace_back([module = model->module()] { module->zero_grad(); });
  }
}

void StateLoad::restore_generator(const Value& states) {
  const auto& saved = states.at("torch_manual_seed").as<at::Tensor>();
  static_cast<void>(generator_of_state(saved));  // throws if it is not a generator's state
  // Other ranks continue no stream of the saved run, except for rank 0 and the ranks that draw the same numbers.
  const auto index = context_.seed_index.value_or(context_.rank);
  const bool continues = has_same_ranks() || index == 0;
  commits_.emplace_back([this, saved, continues, index] {
    if (continues)
      accel::restore_generator(context_.generator, saved);
    else
      context_.generator.set_current_seed(seed_of_new_rank(saved, index));
  });
  if (context_.device.is_cpu() || !states.contains("torch_cuda_manual_seed")) return;
  const auto& of_devices = states.at("torch_cuda_manual_seed").as<Value::List>();
  if (of_devices.empty()) return;
  // This library saves the state of the rank's device only; Python saves those of all devices.
  const auto place = of_devices.size() == 1 ? 0 : static_cast<std::size_t>(context_.device.index());
  check_argument(place < of_devices.size(), "torch_cuda_manual_seed: saved for {} devices; this rank uses device {}",
                 of_devices.size(), place);
  commits_.emplace_back([this, saved, continues, index, state = of_devices[place].as<at::Tensor>()] {
    auto generator = device_generator(context_);
    continues ? generator.set_state(state) : generator.set_current_seed(seed_of_new_rank(saved, index));
  });
}

// Files of other ranks are not compared: each rank loads its own gradients, which no other rank has.
void StateLoad::load_rank_tensors(const Value::List& sync_states) {
  if (!has_same_ranks()) return;
  const auto name = file_of_rank_tensors(context_.rank);
  if (!fs::exists(path(name))) return;
  const SafetensorsFile file(path(name));
  for (std::size_t i = 0; i < state_.models.size(); ++i) {
    load_gradients(i, sync_states[i], file);
    load_buffers(i, file);
  }
}

at::Tensor StateLoad::rank_tensor(const SafetensorsFile& file, const std::string& key, c10::IntArrayRef sizes) const {
  auto saved = file.tensor(key);
  check_argument(saved.sizes() == sizes, "{}: '{}' has sizes [{}], expected [{}]", file_of_rank_tensors(context_.rank),
                 key, fmt::join(saved.sizes(), ", "), fmt::join(sizes, ", "));
  return saved;
}

void StateLoad::load_gradients(std::size_t index, const Value& sync_state, const SafetensorsFile& file) {
  auto& model = *state_.models[index];
  std::map<std::string, at::Tensor> gradients;
  for (const auto& item : model.module()->named_parameters()) {
    const auto key = name_of_gradient(index, item.key());
    if (file.contains(key + kIndices)) {
      gradients.emplace(item.key(), at::sparse_coo_tensor(file.tensor(key + kIndices), file.tensor(key + kValues),
                                                          item.value().sizes()));
    } else if (file.contains(key)) {
      gradients.emplace(item.key(), rank_tensor(file, key, model.gradient_sizes(item.value(), sync_state)));
    }
  }
  commits_.emplace_back([&model, gradients, sync_state] { model.load_gradients(gradients, sync_state); });
}

// Rank 0 has no entries: its buffers are in the model's weights.
void StateLoad::load_buffers(std::size_t index, const SafetensorsFile& file) {
  for (const auto& item : state_.models[index]->module()->named_buffers()) {
    const auto key = name_of_buffer(index, item.key());
    if (!file.contains(key)) continue;
    commits_.emplace_back([buffer = item.value(), saved = rank_tensor(file, key, item.value().sizes())]() mutable {
      buffer.copy_(saved);
    });
  }
}

}  // namespace accel::checkpoint
