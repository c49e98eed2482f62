#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "reference/checkpoint/torch_file.hpp"
#include "reference/core/files.hpp"
#include "reference/core/value.hpp"
#include "reference/training_state/training_state.hpp"

namespace accel {
class SafetensorsFile;
}

/// The files of a checkpoint folder: what one rank writes, and what it takes from them.
///
///     for (const auto& file : files_of_rank(state, context, weights_of(state), {})) write(disk, folder, file);
///
/// Names and content are Accelerate's, so that either loads the other's:
///
/// | file | rank | content |
/// |---|---|---|
/// | model.safetensors, model_1.safetensors ... (pytorch_model.bin ...) | 0 | parameters and buffers |
/// | optimizer.bin, scheduler.bin, optimizer_1.bin ... | 0 | state dicts |
/// | scaler.pt | 0 | the loss scale, under fp16 |
/// | custom_checkpoint_0.pkl ... | 0 | what was registered |
/// | random_states_{rank}.pkl | each | generators, the place in the accumulation window |
/// | dl_state_dict.bin, dl_state_dict_1.bin ...; of rank r > 0 dl_state_dict_rank{r}.bin ... | each | loaders' places |
/// | pytorch_model_fsdp.bin, pytorch_model_fsdp_1.bin ... | 0 | weights of models that are sharded: FULL_STATE_DICT |
/// | pytorch_model_fsdp_0/rank{r}.safetensors ... | each | shards of models, unless FULL_STATE_DICT |
/// | optimizer_0/rank{r}.safetensors ... | each | shards of optimizers' states, unless FULL_STATE_DICT |
/// | rank_tensors_{rank}.safetensors | each that has some | gradients in an accumulation window; buffers of ranks > 0 |
///
/// Thread rule: the rank's thread; `write` any.
namespace accel::checkpoint {

struct StateFile {
  std::string name = {};  ///< tensors: of ".safetensors" as such, else as torch.save writes a model's state dict
  std::variant<NamedTensors, Value> content = {};
  TorchFileOptions types = {};                                       ///< of a value
  std::map<std::string, std::string> metadata = {{"format", "pt"}};  ///< of safetensors
};

inline constexpr const char* kModelShards = "pytorch_model_fsdp";
inline constexpr const char* kOptimizerShards = "optimizer";
/// "optimizer.bin", "optimizer_1.bin" ...; "model.safetensors" ...
[[nodiscard]] std::string file_of_optimizer(std::size_t index);
[[nodiscard]] std::string file_of_scheduler(std::size_t index);
[[nodiscard]] std::string file_of_model(std::size_t index, bool safe_serialization);
[[nodiscard]] std::string file_of_whole_fsdp_model(std::size_t index);
[[nodiscard]] std::string file_of_custom(std::size_t index);
[[nodiscard]] std::string file_of_loader(std::size_t index, int rank);
[[nodiscard]] std::string file_of_random_states(int rank);
[[nodiscard]] std::string file_of_rank_tensors(int rank);
inline constexpr const char* kScalerFile = "scaler.pt";
/// Behind the name of a gradient that is sparse: a tensor each.
inline constexpr auto kIndices = ".indices", kValues = ".values";
/// In rank_tensors: of which model, and its name there.
[[nodiscard]] std::string name_of_gradient(std::size_t model, const std::string& name);
[[nodiscard]] std::string name_of_buffer(std::size_t model, const std::string& name);

/// Of every model; of a sharded one whole on rank 0 alone under FULL_STATE_DICT, else none. Collective.
[[nodiscard]] Weights weights_of(const TrainingState& state);

struct StateFileOptions {
  bool safe_serialization = true;  ///< weights as safetensors, else as torch.save writes them
  bool save_on_each_node = false;  ///< what rank 0 writes, the first rank of every machine writes
};
/// What this rank writes. Collective.
[[nodiscard]] std::vector<StateFile> files_of_rank(TrainingState& state, RankContext& context, const Weights& weights,
                                                   StateFileOptions options);

/// The same with tensors of its own, on the CPU.
[[nodiscard]] StateFile copied(const StateFile& file);

void write(Files& files, const std::string& folder, const StateFile& file);

/// What is loaded from a folder, on this rank: all of it, or nothing.
///
/// The constructor reads and checks everything, and throws CheckpointError with what was there before in its place
/// again; so does, for another rank's sake, the destructor of one that was not committed.
class StateLoad {
 public:
  /// `saved_ranks`: how many ranks wrote the folder; none: it has no manifest. `models`: which of them to load.
  StateLoad(TrainingState& state, RankContext& context, std::string folder, std::optional<int> saved_ranks,
            const std::vector<bool>& models);
  ~StateLoad();
  StateLoad(const StateLoad&) = delete;
  StateLoad& operator=(const StateLoad&) = delete;

  /// On no rank is anything wrong.
  void commit();

 private:
  void load_model(std::size_t index);
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
  [[nodiscard]] bool has_same_ranks() const { return saved_ranks_ == context_.world_size; }
  [[nodiscard]] std::string path(const std::string& name) const { return folder_ + "/" + name; }
  [[nodiscard]] Value read(const std::string& name) const;

  TrainingState& state_;
  RankContext& context_;
  std::string folder_;
  int saved_ranks_;
  std::vector<std::function<void()>> commits_;  // that cannot fail
  std::vector<std::function<void()>> undos_;
};

}  // namespace accel::checkpoint
