// Note [Watching operators]
// LibTorch calls a RecordFunction callback before each operator of this thread, with its inputs. An operator's schema
// states for each argument whether it is a view (an alias that is not written), written (an alias with a write) or only
// read.
#include "reference/comm/operator_watch.hpp"

#include <ATen/core/function_schema.h>
#include <torch/csrc/autograd/engine.h>

#include <algorithm>
#include <string_view>

namespace accel {
namespace {

// LibTorch's callback carries no state, so the watch of the thread is found here.
thread_local OperatorWatch* thread_watch = nullptr;

bool is_in_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

// Their tensors are those of the collective itself.
bool is_collective(std::string_view op) { return op.starts_with("c10d::") || op.starts_with("_c10d_functional::"); }

// Returns whether an operator reads only this argument's shape and dtype.
bool reads_no_data(std::string_view op, std::size_t index) {
  op.remove_prefix(op.rfind(':') + 1);
  return op.ends_with("_like") || op.starts_with("new_") || op == "is_same_size" || op == "sparse_dim" ||
         op == "dense_dim" || (index == 1 && op.ends_with("_as"));
}

bool is_sparse(const at::Tensor& tensor) { return tensor.defined() && tensor.layout() == at::kSparse; }

MemoryRange range_of_itself(const at::Tensor& tensor) {
  const auto* begin = reinterpret_cast<const char*>(tensor.unsafeGetTensorImpl());
  return {begin, begin + 1};
}

}  // namespace

void OperatorWatch::start() {
  if (handle_ != at::INVALID_CALLBACK_HANDLE || is_in_backward()) return;
  thread_watch = this;
  handle_ = at::addThreadLocalCallback(
      at::RecordFunctionCallback(&OperatorWatch::on_operator).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

// Inside a backward pass the callback is kept: removing it there would be undone when the pass ends.
void OperatorWatch::stop() {
  if (handle_ == at::INVALID_CALLBACK_HANDLE || is_in_backward()) return;
  at::removeCallback(handle_);
  handle_ = at::INVALID_CALLBACK_HANDLE;
  thread_watch = nullptr;
}

std::unique_ptr<at::ObserverContext> OperatorWatch::on_operator(const at::RecordFunction& function) {
  if (thread_watch != nullptr) thread_watch->inspect(function);
  return nullptr;
}

// Arguments are matched to the schema by position. Operators without a schema (user annotations) read no tensors.
void OperatorWatch::inspect(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (!schema || is_collective(function.name())) return;
  const auto inputs = function.inputs();
  const auto& arguments = schema->arguments();
  for (std::size_t index = 0; index < std::min<std::size_t>(inputs.size(), arguments.size()); ++index) {
    const auto* alias = arguments[index].alias_info();
    if (alias != nullptr && !alias->isWrite()) continue;  // a view
    if (reads_no_data(function.name(), index)) continue;
    const bool writes = alias != nullptr;
    const auto& input = inputs[index];
    if (input.isTensor()) {
      touch_tensor(input.toTensor(), writes, function.name());
    } else if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) touch_tensor(tensor, writes, function.name());
    }
  }
}

// The indices and values of a sparse tensor are separate tensors, which operators inside its operators use.
void OperatorWatch::touch_tensor(const at::Tensor& tensor, bool writes, const char* op) {
  if (has_memory(tensor)) touch(memory_range(tensor), writes, op);
  if (is_sparse(tensor)) touch(range_of_itself(tensor), writes, op);
}

bool has_memory(const at::Tensor& tensor) {
  return tensor.defined() && tensor.layout() == at::kStrided && tensor.has_storage() && tensor.numel() > 0;
}

MemoryRange memory_range(const at::Tensor& tensor) {
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<std::int64_t>(tensor.element_size())};
}

std::vector<UsedMemory> used_memory(const std::vector<at::Tensor>& tensors, bool are_written) {
  std::vector<UsedMemory> memory;
  const auto add = [&](const at::Tensor& tensor, bool is_written) {
    if (has_memory(tensor)) memory.push_back({memory_range(tensor), is_written, tensor.storage().getWeakStorageImpl()});
  };
  for (const auto& tensor : tensors) {
    add(tensor, are_written);
    if (!is_sparse(tensor)) continue;
    memory.push_back({range_of_itself(tensor), are_written, c10::weak_intrusive_ptr(tensor.getIntrusivePtr())});
    for (const auto& part : {tensor._indices(), tensor._values()}) add(part, /*is_written=*/false);
  }
  return memory;
}

bool are_freed(const std::vector<UsedMemory>& memory) {
  return std::all_of(memory.begin(), memory.end(), [](const auto& used) { return used.owner.expired(); });
}

}  // namespace accel
