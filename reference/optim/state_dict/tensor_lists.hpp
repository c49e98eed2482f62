#pragma once

#include <torch/optim/optimizer.h>

#include <string_view>
#include <vector>

/// The inputs of one step: the parameters of a group that have gradients, the gradients, and the optimizer's state, as
/// lists for kernels that process many tensors at a time.
///
///     for (auto& lists : gather_tensors(group.params(), entries, states, {.optimizer = "Adam"})) {
///       at::_foreach_mul_(lists["exp_avg"], 0.9);
///     }
///
/// Thread rule: the rank's thread. Source: torch/optim/optimizer.py, _group_tensors_by_device_and_dtype.
namespace accel::optim {

/// One tensor that an optimizer keeps per parameter.
struct StateEntry {
  enum class Kind {
    kLikeParameter,   // shape, dtype and device of the parameter
    kScalar,          // zero-dimensional, on the CPU, so that reading it does not wait for a device
    kFloatScalar,     // the same, but always float32, whatever the default dtype is
    kScalarOnDevice,  // zero-dimensional, on the parameter's device
    kFusedStep,       // zero-dimensional, float32, on the parameter's device, as fused kernels require
    kCount,           // zero-dimensional, int64, on the CPU; an int in state dicts
    kRowFactor,       // the parameter's shape with a last dimension of 1; for 2 or more dimensions only
    kColumnFactor,    // the same with a next-to-last dimension of 1
    kUnfactored,      // like the parameter; for 0 and 1 dimensions only
  };
  static bool is_float32(Kind kind) { return kind == Kind::kFloatScalar || kind == Kind::kFusedStep; }
  static bool is_on_cpu(Kind kind) {
    return kind == Kind::kScalar || kind == Kind::kFloatScalar || kind == Kind::kCount;
  }
  static bool is_factor(Kind kind) { return kind == Kind::kRowFactor || kind == Kind::kColumnFactor; }
  static bool is_scalar(Kind kind) {
    return kind != Kind::kLikeParameter && kind != Kind::kUnfactored && !is_factor(kind);
  }
  /// Whether parameters with this number of dimensions have the entry.
  [[nodiscard]] bool exists_for(const at::Tensor& param) const {
    return is_factor(kind) ? param.dim() > 1 : kind != Kind::kUnfactored || param.dim() <= 1;
  }
  /// The shape of the entry of a parameter that has it.
  [[nodiscard]] std::vector<std::int64_t> shape_for(const at::Tensor& param) const;

  const char* name;  // as in Python's state dict
  Kind kind = Kind::kLikeParameter;
  double initial = 0;
  bool used = true;  // created with the state; otherwise the optimizer creates it later, or never
};

/// The state of one parameter: one tensor per entry, undefined if it is not used.
struct ParamState : torch::optim::OptimizerCloneableParamState<ParamState> {
  std::vector<at::Tensor> tensors = {};
};

using ParamStates = ska::flat_hash_map<void*, std::unique_ptr<torch::optim::OptimizerParamState>>;

/// Tensors of one device and dtype. Complex tensors are viewed as real ones with an additional dimension.
struct TensorLists {
  std::vector<at::Tensor> params = {}, grads = {};
  std::vector<std::vector<at::Tensor>> state = {};  // by entry; empty if no parameter of these lists has it
  std::vector<ParamState*> owners = {};
  const std::vector<StateEntry>* entries = nullptr;
  at::ScalarType dtype = at::kFloat;        // the parameters' dtype
  at::ScalarType first_dtype = at::kFloat;  // of the first parameter with a gradient in the group
  at::Tensor lr = {};         // float32, shape [], on the device: replaces the option; undefined: the option
  at::Tensor found_inf = {};  // float32, shape [], on the device: above 0 for a step that is skipped

  /// The tensors of an entry, by its name in Python.
  std::vector<at::Tensor>& operator[](std::string_view name);
};

struct GatherOptions {
  const char* optimizer = "";  // name for messages
  bool fused = false;          // fused kernels accept floating-point parameters only
  bool sparse = false;         // whether gradients must be sparse; otherwise they must be dense
};

/// Creates the state of parameters that have a gradient for the first time. `entries` must outlive the result. Throws
/// ArgumentError for a gradient of the other layout, StateError if the group's options need state that was not kept.
std::vector<TensorLists> gather_tensors(const std::vector<at::Tensor>& params, const std::vector<StateEntry>& entries,
                                        ParamStates& states, const GatherOptions& options);

/// The initial value of an entry.
at::Tensor initial_state(const at::Tensor& param, const StateEntry& entry);
std::unique_ptr<ParamState> initial_state(const at::Tensor& param, const std::vector<StateEntry>& entries);

}  // namespace accel::optim
