#pragma once

#include <torch/optim/optimizer.h>

#include <string_view>
#include <vector>

/// What one step works on: the parameters with gradients of a group, their gradients and their state, as lists for
/// kernels that take many tensors at a time.
///
///     for (auto& lists : gather_tensors(group.params(), entries, states, {.optimizer = "Adam"})) {
///       at::_foreach_mul_(lists["exp_avg"], 0.9);
///     }
///
/// Thread rule: the rank's thread. Source: torch/optim/optimizer.py, _group_tensors_by_device_and_dtype.
namespace accel::optim {

/// One tensor that an optimizer keeps for each parameter.
struct StateEntry {
  enum class Kind {
    kLikeParameter,   // shape, dtype and device of the parameter
    kScalar,          // of no dimension, on the CPU, so that reading it waits for no device
    kFloatScalar,     // the same in float32, whatever the default dtype is
    kScalarOnDevice,  // of no dimension, on the parameter's device
    kFusedStep,       // of no dimension, float32, on the parameter's device: what fused kernels read
  };
  static bool is_float32(Kind kind) { return kind == Kind::kFloatScalar || kind == Kind::kFusedStep; }
  static bool is_on_cpu(Kind kind) { return kind == Kind::kScalar || kind == Kind::kFloatScalar; }

  const char* name;  // Python's
  Kind kind = Kind::kLikeParameter;
  double initial = 0;
  bool used = true;  // made with the state; otherwise the optimizer makes it later, or never
};

/// The state of one parameter: a tensor for each entry, undefined where it is not used.
struct ParamState : torch::optim::OptimizerCloneableParamState<ParamState> {
  std::vector<at::Tensor> tensors = {};
};

using ParamStates = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

/// Tensors of one device and dtype. Complex ones are viewed as real ones with one more dimension.
struct TensorLists {
  std::vector<at::Tensor> params = {}, grads = {};
  std::vector<std::vector<at::Tensor>> state = {};  // by entry; empty where no parameter of these lists has it
  std::vector<ParamState*> owners = {};
  const std::vector<StateEntry>* entries = nullptr;
  at::ScalarType dtype = at::kFloat;  // of the parameters

  /// The tensors of an entry, by Python's name.
  std::vector<at::Tensor>& operator[](std::string_view name);
};

struct GatherOptions {
  const char* optimizer = "";  // for messages
  bool fused = false;          // fused kernels take floating-point parameters only
};

/// Makes the state of parameters that have a gradient for the first time. `entries` must outlive the result.
/// Throws ArgumentError for a sparse gradient, StateError if the group's options now need state that was not kept.
std::vector<TensorLists> gather_tensors(const std::vector<at::Tensor>& params, const std::vector<StateEntry>& entries,
                                        ParamStates& states, const GatherOptions& options);

/// A tensor as an entry is at the start.
at::Tensor initial_state(const at::Tensor& param, const StateEntry& entry);
std::unique_ptr<ParamState> initial_state(const at::Tensor& param, const std::vector<StateEntry>& entries);

}  // namespace accel::optim
