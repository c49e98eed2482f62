#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/named_tensors.hpp"
#include "reference/sharded/memory_account.hpp"

namespace accel {

struct StoredWeight;
struct TensorPart;

/// A prepared model's values in checkpoints, and its memory.
///
/// Every rank must call functions marked "Collective", in the same order. Thread rule: the rank's thread.
class ModelState {
 public:
  /// How checkpoints store the model.
  struct Form {
    std::string state_dict_type = "FULL_STATE_DICT";  ///< or SHARDED_STATE_DICT, LOCAL_STATE_DICT
    bool has_fsdp_file_names = false;                 ///< files have the names of FSDP checkpoints
    [[nodiscard]] bool is_complete() const { return state_dict_type == "FULL_STATE_DICT"; }
  };

  virtual ~ModelState() = default;

  [[nodiscard]] virtual Form form() const = 0;
  /// Returns complete parameters and buffers by name, on the CPU. For a sharded model: on the main process only and
  /// empty on others, with floating tensors in `sharded_dtype` if given. Collective.
  [[nodiscard]] virtual NamedTensors full_state(std::optional<at::ScalarType> sharded_dtype) = 0;
  /// The tensors that a FULL_STATE_DICT checkpoint stores: the module's own, or those of `full_state`. Empty for other
  /// types. Collective.
  [[nodiscard]] virtual NamedTensors weights() = 0;
  /// This rank's parts; the parts of all ranks form the model. Empty if every rank has the complete model.
  [[nodiscard]] virtual std::vector<TensorPart> parts() const = 0;
  /// Checks that complete tensors match the model by name and returns a function that loads them. Throws
  /// CheckpointError, whose message may begin with `what`.
  [[nodiscard]] virtual std::function<void()> prepare_load(const std::string& what,
                                                           const std::map<std::string, StoredWeight>& weights) = 0;

  /// The account to which an ActivationMeter adds.
  [[nodiscard]] virtual sharded::MemoryAccount& memory() = 0;
  /// The current and peak memory of this rank for the model, without optimizer state.
  [[nodiscard]] virtual sharded::MemoryAccount memory_account() = 0;
};

}  // namespace accel
