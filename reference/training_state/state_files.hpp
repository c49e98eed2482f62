#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/checkpoint/distributed/distributed_files.hpp"
#include "reference/checkpoint/torch_file.hpp"
#include "reference/checkpoint/weights_files.hpp"
#include "reference/files/files.hpp"
#include "reference/training_state/checkpointing.hpp"
#include "reference/training_state/training_state.hpp"
#include "reference/tree/value.hpp"

namespace accel {
class SafetensorsFile;
}

/// The files of a checkpoint folder: what each rank writes, and how it loads them.
///
///     for (const auto& file : files_of_rank(state, context, weights_of(state), {})) write(disk, folder, file);
///
/// Names and contents are those of Accelerate, so that each library loads the other's checkpoints:
///
/// | file | rank | content |
/// |---|---|---|
/// | model.safetensors, model_1.safetensors ... (pytorch_model.bin ...) | 0 | parameters and buffers |
/// | optimizer.bin, scheduler.bin, optimizer_1.bin ... | 0 | state dicts |
/// | scaler.pt | 0 | the loss scale, under fp16 |
/// | custom_checkpoint_0.pkl ... | 0 | registered objects |
/// | random_states_{rank}.pkl | each | generators, the position in the accumulation window |
/// | dl_state_dict.bin, dl_state_dict_1.bin ...; for r > 0 dl_state_dict_rank{r}.bin ... | each | loader positions |
/// | pytorch_model_fsdp.bin, pytorch_model_fsdp_1.bin ... | 0 | weights of sharded models: FULL_STATE_DICT |
/// | pytorch_model_fsdp_0/__{r}_0.distcp ... | each | shards of models: SHARDED_STATE_DICT |
/// | optimizer_0/__{r}_0.distcp ... | each | optimizer states, in place of optimizer.bin: SHARDED_STATE_DICT |
/// | pytorch_model_fsdp_0/.metadata, optimizer_0/.metadata ... | 0 | which item is where in these folders |
/// | pytorch_model_fsdp_0/rank{r}.safetensors ... | each | shards of models: LOCAL_STATE_DICT |
/// | optimizer_0/rank{r}.safetensors ... | each | shards of optimizer states: LOCAL_STATE_DICT |
/// | rank_tensors_{rank}.safetensors | each with any | gradients in an accumulation window; buffers of ranks > 0 |
///
/// Thread rule: the rank's thread; `write` may run on any thread.
namespace accel::checkpoint {

struct FileBytes {
  std::string bytes = {};
};

struct StateFile {
  std::string name = {};  ///< tensors in a ".safetensors" file are written as safetensors, others like torch.save
  std::variant<NamedTensors, Value, std::vector<DistributedItem>, FileBytes> content = {};
  TorchFileOptions types = {};                                       ///< for a Value and for items
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< for safetensors
};

inline constexpr const char* kModelShards = "pytorch_model_fsdp";
inline constexpr const char* kOptimizerShards = "optimizer";
inline constexpr const char* kShardedStateDict = "SHARDED_STATE_DICT";
/// "optimizer.bin", "optimizer_1.bin" ...; "model.safetensors" ...
[[nodiscard]] std::string file_of_optimizer(std::size_t index);
[[nodiscard]] std::string file_of_scheduler(std::size_t index);
[[nodiscard]] std::string file_of_model(std::size_t index, bool safe_serialization);
[[nodiscard]] std::string file_of_full_fsdp_model(std::size_t index);
[[nodiscard]] std::string file_of_custom(std::size_t index);
[[nodiscard]] std::string file_of_loader(std::size_t index, int rank);
[[nodiscard]] std::string file_of_random_states(int rank);
[[nodiscard]] std::string file_of_rank_tensors(int rank);
/// In random_states: what Accelerate does not save.
inline constexpr const char* kOurs = "accel";
inline constexpr const char* kScalerFile = "scaler.pt";
/// Suffixes of the name of a sparse gradient, which is stored as two tensors.
inline constexpr auto kIndices = ".indices", kValues = ".values";
/// Names in rank_tensors: the index of the model, and the tensor's name in that model.
[[nodiscard]] std::string name_of_gradient(std::size_t model, const std::string& name);
[[nodiscard]] std::string name_of_buffer(std::size_t model, const std::string& name);

/// Whether the entries of a checkpoint folder show that this library wrote it, and not Python's Accelerate.
[[nodiscard]] bool is_of_accel(const std::string& folder);

/// Which samples and parts of a model each rank has: "dp 2 x tp 4". How data-parallel ranks shard the model is omitted.
/// With a pipeline also a hash of its cut: "dp 2 x pp 4 (stages 1f3a...)".
[[nodiscard]] std::string describe(const TrainingState& state);

/// Returns the weights of every model. For a sharded model: complete on rank 0 under FULL_STATE_DICT, else empty.
/// Collective.
[[nodiscard]] Weights weights_of(const TrainingState& state);

struct StateFileOptions {
  bool safe_serialization = true;  ///< weights as safetensors, else as torch.save writes them
  bool save_on_each_node = false;  ///< the first rank of every machine writes the files of rank 0
};
/// Returns the files that this rank must write. Collective.
[[nodiscard]] std::vector<StateFile> files_of_rank(TrainingState& state, RankContext& context, const Weights& weights,
                                                   StateFileOptions options);

/// Returns a copy whose tensors share no memory with `file`, on the CPU.
[[nodiscard]] StateFile copied(const StateFile& file);

void write(Files& files, const std::string& folder, const StateFile& file);

/// The state of an optimizer in a checkpoint. `shards` are the tensors that `state` lacks, as "parameter/entry".
struct SavedOptimizer {
  Value state = {};
  std::map<std::string, StoredWeight> shards = {};
};

/// Loads a folder on this rank, completely or not at all.
///
/// The constructor reads and checks everything. If it throws CheckpointError, it has restored the previous state. The
/// destructor restores it too unless commit() was called, so that a rank can follow the failure of another.
class StateLoad {
 public:
  /// `saved_ranks`: the number of ranks that wrote the folder; empty if it has no manifest. `models`: which ones to
  /// load.
  StateLoad(TrainingState& state, RankContext& context, std::string folder, std::optional<int> saved_ranks,
            const std::vector<bool>& models, const LoadStateOptions& options);
  ~StateLoad();
  StateLoad(const StateLoad&) = delete;
  StateLoad& operator=(const StateLoad&) = delete;

  /// Completes the load. Call it when all ranks have constructed theirs without an error. Cannot fail.
  void commit();

 private:
  /// The place in the accumulation window in which the folder was saved.
  struct SavedWindow {
    std::int64_t num_micro_batches = 0;
    std::size_t loader = 0;           // which one was being read
    std::int64_t units_per_step = 0;  // of that loader
    bool is_repeated = false;         // its position was moved back
  };
  [[nodiscard]] bool was_saved_inside_window() const;
  [[nodiscard]] std::optional<SavedWindow> window_to_drop(const LoadStateOptions& options) const;
  void drop_gradients();
  void load_model(std::size_t index);
  [[nodiscard]] SavedOptimizer saved_optimizer(std::size_t index) const;
  void load_optimizer(std::size_t index);
  void load_scheduler(std::size_t index);
  void load_scaler(GradScaler& scaler);
  void load_loader(std::size_t index);
  void load_custom();
  void load_random_states();
  void load_rank_tensors(const Value::List& sync_states);
  void load_gradients(std::size_t index, const Value& sync_state, const SafetensorsFile& file);
  void load_buffers(std::size_t index, const SafetensorsFile& file);
  [[nodiscard]] at::Tensor rank_tensor(const SafetensorsFile& file, const std::string& key,
                                       c10::IntArrayRef sizes) const;
  void restore_generator(const Value& states);
  void undo() noexcept;
  [[nodiscard]] std::optional<std::string> find_saved_mesh() const;
  // Each rank has the place in the mesh that the rank of this number had.
  [[nodiscard]] bool has_same_ranks() const {
    return saved_ranks_ == context_.world_size && saved_mesh_.value_or(describe(state_)) == describe(state_);
  }
  [[nodiscard]] std::string saving_ranks() const;
  [[nodiscard]] std::string loading_ranks() const;
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  [[nodiscard]] Value read(const std::string& name) const;

  TrainingState& state_;
  RankContext& context_;
  std::string folder_;
  int saved_ranks_;
  std::optional<std::string> saved_mesh_;  // absent in Python's checkpoints and in those of earlier versions
  std::optional<SavedWindow> dropped_;
  std::vector<std::function<void()>> commits_;  // must not fail
  std::vector<std::function<void()>> undos_;
};

}  // namespace accel::checkpoint
