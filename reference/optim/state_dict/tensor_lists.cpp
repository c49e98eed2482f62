#include "reference/optim/state_dict/tensor_lists.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "reference/core/errors.hpp"

// Groups a step's tensors by device, dtype and available state, because a multi-tensor kernel needs lists that are
// uniform in all three.
namespace accel::optim {
namespace {

using Kind = StateEntry::Kind;

void check_gradient(const at::Tensor& param, const GatherOptions& options) {
  check_argument(!param.grad().is_sparse() || options.sparse,
                 "{}: the gradient of a parameter of shape [{}] is sparse; use accel::optim::SparseAdam, "
                 "torch::optim::SGD or a dense embedding",
                 options.optimizer, fmt::join(param.sizes(), ", "));
  check_argument(param.grad().is_sparse() || !options.sparse,
                 "{}: the gradient of a parameter of shape [{}] is dense; use accel::optim::Adam, or an embedding with "
                 "sparse(true)",
                 options.optimizer, fmt::join(param.sizes(), ", "));
  check_argument(!options.fused || param.is_floating_point(),
                 "{}: fused kernels accept floating-point parameters only, got {}; set fused to false",
                 options.optimizer, c10::toString(param.scalar_type()));
}

// State is created lazily, as in Python, because a parameter may never receive a gradient.
ParamState& state_of(const at::Tensor& param, const std::vector<StateEntry>& entries, ParamStates& states,
                     const GatherOptions& options) {
  auto& state = states[param.unsafeGetTensorImpl()];
  if (state == nullptr) state = initial_state(param, entries);
  auto& ours = static_cast<ParamState&>(*state);
  for (std::size_t entry = 0; entry < entries.size(); ++entry) {
    // E.g. amsgrad switched on after the first step. Python raises KeyError there.
    check_state(
        !entries[entry].used || !entries[entry].exists_for(param) || ours.tensors[entry].defined(),
        "{}: a parameter's state lacks '{}', which the options of its group require; set them before the first step",
        options.optimizer, entries[entry].name);
  }
  return ours;
}

// The set of defined tensors counts, too: a momentum buffer may exist for some parameters only.
bool fits(const TensorLists& lists, const at::Tensor& param, const ParamState& state) {
  const auto& first = *lists.owners.front();
  for (std::size_t entry = 0; entry < state.tensors.size(); ++entry) {
    if (first.tensors[entry].defined() != state.tensors[entry].defined()) return false;
  }
  return lists.params.front().device() == param.device() && lists.dtype == param.scalar_type();
}

// Views are appended, not copies: kernels write through them into parameters and state.
void append(TensorLists& lists, const at::Tensor& param, ParamState& state) {
  // As torch's _view_as_real: optimizers treat a complex number as two real ones. A real scalar such as `step` stays.
  const auto real = [complex = param.is_complex()](const at::Tensor& tensor) {
    return complex && tensor.is_complex() ? at::view_as_real(tensor) : tensor;
  };
  lists.params.push_back(real(param));
  lists.grads.push_back(real(param.grad()));
  for (std::size_t entry = 0; entry < state.tensors.size(); ++entry) {
    if (state.tensors[entry].defined()) lists.state[entry].push_back(real(state.tensors[entry]));
  }
  lists.owners.push_back(&state);
}

}  // namespace

std::vector<at::Tensor>& TensorLists::operator[](std::string_view name) {
  const auto entry = std::find_if(entries->begin(), entries->end(),
                                  [&](const StateEntry& candidate) { return candidate.name == name; });
  ensure(entry != entries->end(), "optimizer state has no entry '{}'", name);
  return state[entry - entries->begin()];
}

std::vector<TensorLists> gather_tensors(const std::vector<at::Tensor>& params, const std::vector<StateEntry>& entries,
                                        ParamStates& states, const GatherOptions& options) {
  // All checks come first, so that an error leaves every parameter of the group unstepped.
  for (const auto& param : params) {
    if (param.grad().defined()) check_gradient(param, options);
  }
  std::vector<TensorLists> all;
  for (const auto& param : params) {
    if (!param.grad().defined()) continue;
    auto& state = state_of(param, entries, states, options);
    auto lists = std::find_if(all.begin(), all.end(),
                              [&](const TensorLists& candidate) { return fits(candidate, param, state); });
    if (lists == all.end()) {
      lists = all.insert(all.end(), TensorLists{.state = std::vector<std::vector<at::Tensor>>(entries.size()),
                                                .entries = &entries,
                                                .dtype = param.scalar_type(),
                                                .first_dtype = all.empty() ? param.scalar_type() : all.front().dtype});
    }
    append(*lists, param, state);
  }
  return all;
}

std::vector<std::int64_t> StateEntry::shape_for(const at::Tensor& param) const {
  if (is_scalar(kind)) return {};
  auto shape = param.sizes().vec();
  if (is_factor(kind)) shape[shape.size() - (kind == Kind::kRowFactor ? 1 : 2)] = 1;
  return shape;
}

at::Tensor initial_state(const at::Tensor& param, const StateEntry& entry) {
  if (StateEntry::is_factor(entry.kind)) return at::zeros(entry.shape_for(param), param.options().requires_grad(false));
  if (!StateEntry::is_scalar(entry.kind)) {
    auto tensor = at::zeros_like(param, at::MemoryFormat::Preserve);
    // Both parts of a complex number are set, as in Python's step sizes and accumulators.
    if (entry.initial != 0) (tensor.is_complex() ? at::view_as_real(tensor) : tensor).fill_(entry.initial);
    return tensor;
  }
  // Source: torch/optim/optimizer.py, _get_scalar_dtype.
  const bool is_double =
      !StateEntry::is_float32(entry.kind) && at::typeMetaToScalarType(at::get_default_dtype()) == at::kDouble;
  const auto device = StateEntry::is_on_cpu(entry.kind) ? at::Device(at::kCPU) : param.device();
  const auto dtype = entry.kind == Kind::kCount ? at::kLong : is_double ? at::kDouble : at::kFloat;
  return at::full({}, entry.initial, at::TensorOptions(device).dtype(dtype));
}

std::unique_ptr<ParamState> initial_state(const at::Tensor& param, const std::vector<StateEntry>& entries) {
  auto state = std::make_unique<ParamState>();
  for (const auto& entry : entries)
    state->tensors.push_back(entry.used && entry.exists_for(param) ? initial_state(param, entry) : at::Tensor());
  return state;
}

}  // namespace accel::optim
