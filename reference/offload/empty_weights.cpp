#include "reference/offload/empty_weights.hpp"

#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <vector>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"
#include "reference/offload/module_tensors.hpp"

// Note [Where new tensors go]
// LibTorch calls no hook when a module registers a parameter, and has no default device. But operators are dispatched
// by thread-local keys as well. TESTING_ONLY_GenericMode is the first of these keys and unused otherwise. The kernel
// below is registered under it for all operators: it sets the device of operators that create tensors, records the
// call, and redispatches without the key. A thread without a scope pays nothing.
namespace accel::offload {

struct DefaultDeviceScope::State {
  explicit State(c10::Device device) : device(device) {}

  struct Done {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;  // those of the caller, before the device was set
    torch::jit::Stack results;
  };

  c10::Device device;
  c10::InferenceMode normal{false};  // parameters outlive the scope, and inference tensors could not be trained later
  State* previous = nullptr;
  std::vector<Done> done;
};

namespace {

constexpr auto kScopeKey = c10::DispatchKey::TESTING_ONLY_GenericMode;
thread_local DefaultDeviceScope::State* innermost_scope = nullptr;

// The index of the operator's `Device? device` argument, which all factory functions have; nullopt for other operators.
std::optional<std::size_t> device_argument(const c10::FunctionSchema& schema) {
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    if (schema.arguments()[i].name() == "device" && schema.arguments()[i].type()->kind() == c10::TypeKind::OptionalType)
      return i;
  }
  return std::nullopt;
}

void run_on_device(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  // Without the guard the redispatch would end up in this kernel again.
  const c10::impl::ExcludeDispatchKeyGuard once(kScopeKey);
  const auto& schema = op.schema();
  const auto begin = static_cast<std::ptrdiff_t>(stack->size() - schema.arguments().size());
  torch::jit::Stack arguments(stack->begin() + begin, stack->end());
  const auto device = device_argument(schema);
  // Operators such as `zeros_like` or `to` have a device argument, too, but take their default from an input tensor.
  const bool makes_tensors =
      device && std::none_of(arguments.begin(), arguments.end(), [](const auto& value) { return value.isTensor(); });
  if (makes_tensors && (*stack)[static_cast<std::size_t>(begin) + *device].isNone())
    (*stack)[static_cast<std::size_t>(begin) + *device] = innermost_scope->device;
  op.callBoxed(stack);
  innermost_scope->done.push_back({op, std::move(arguments), {stack->begin() + begin, stack->end()}});
}

void dispatch_with_default_device(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  run_on_device(op, stack);
}

// Registered for the process, but reached only by threads that include the key: see DefaultDeviceScope's constructor.
TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericMode, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&dispatch_with_default_device>());
}

// Operators take tensors directly or in lists (at::cat, at::stack); other containers do not occur in factories.
std::vector<at::Tensor> tensors_in(const torch::jit::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const auto& value : values) {
    if (value.isTensor() && value.toTensor().defined()) tensors.push_back(value.toTensor());
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(tensor);
    }
  }
  return tensors;
}

// Repeats, without the scope's device, the operations that computed some tensors: those that touched the tensors'
// memory, or memory that such operations read. Values are then real, whereas the rest of the model costs nothing.
class OperationReplayer {
 public:
  explicit OperationReplayer(const std::vector<DefaultDeviceScope::State::Done>& done) : done_(done) {}

  void remake(const std::vector<at::Tensor>& wanted) {
    std::set<const c10::StorageImpl*> memory;
    for (const auto& tensor : wanted) memory.insert(memory_of(tensor));
    std::vector<std::size_t> needed;
    // Backwards, since an operation may only depend on earlier ones; each match extends the memory that is needed.
    for (auto i = done_.size(); i-- > 0;) {
      auto touched = tensors_in(done_[i].arguments);
      for (auto& result : tensors_in(done_[i].results)) touched.push_back(result);
      if (std::none_of(touched.begin(), touched.end(),
                       [&](const auto& tensor) { return memory.contains(memory_of(tensor)); }))
        continue;
      needed.push_back(i);
      for (const auto& tensor : touched) memory.insert(memory_of(tensor));
    }
    // In the original order, because operations in place and random numbers depend on it.
    for (auto i = needed.rbegin(); i != needed.rend(); ++i) repeat(done_[*i]);
  }

  // The repeated counterpart of `tensor`: a view of the new memory with the same geometry. Matched by memory and not by
  // object, because autograd wraps new tensors in others.
  [[nodiscard]] at::Tensor made(const at::Tensor& tensor) const {
    const auto found = made_.find(memory_of(tensor));
    return found == made_.end() ? tensor
                                : found->second.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  }

 private:
  // Meta tensors have a storage object, too, without data; views share it.
  static const c10::StorageImpl* memory_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }

  void repeat(const DefaultDeviceScope::State::Done& done) {
    auto stack = done.arguments;
    for (auto& value : stack) {
      if (value.isTensor() && value.toTensor().defined()) value = made(value.toTensor());
      if (value.isTensorList()) {
        std::vector<at::Tensor> tensors;
        for (const at::Tensor& tensor : value.toTensorList()) tensors.push_back(made(tensor));
        value = tensors;
      }
    }
    done.op.callBoxed(&stack);
    const auto before = tensors_in(done.results), after = tensors_in(stack);
    ensure(before.size() == after.size(), "{}: returned another number of tensors when repeated",
           done.op.schema().name());
    for (std::size_t i = 0; i < before.size(); ++i) made_.emplace(memory_of(before[i]), after[i]);
  }

  const std::vector<DefaultDeviceScope::State::Done>& done_;
  std::unordered_map<const c10::StorageImpl*, at::Tensor> made_;
};

}  // namespace

// Scopes nest per thread; the innermost one decides the device.
DefaultDeviceScope::DefaultDeviceScope(c10::Device device) : state_(std::make_unique<State>(device)) {
  state_->previous = std::exchange(innermost_scope, state_.get());
  c10::impl::tls_set_dispatch_key_included(kScopeKey, true);
}

DefaultDeviceScope::~DefaultDeviceScope() {
  innermost_scope = state_->previous;
  // An outer scope still needs the key.
  c10::impl::tls_set_dispatch_key_included(kScopeKey, innermost_scope != nullptr);
}

void DefaultDeviceScope::finish(torch::nn::Module& module, InitOptions options) {
  // The copies and repetitions below must not be redirected or recorded.
  const c10::impl::ExcludeDispatchKeyGuard outside(kScopeKey);
  const c10::NoGradGuard no_grad;
  const bool includes_buffers = options.include_buffers
                                    ? *options.include_buffers
                                    : environment_flag("ACCELERATE_INIT_INCLUDE_BUFFERS").value_or(false);
  const auto move = [&](const at::Tensor& tensor) {
    // E.g. a parameter that its module created with an explicit device.
    if (tensor.device() != state_->device)
      show(tensor, state_->device.is_meta() ? meta_like(tensor) : tensor.detach().to(state_->device));
  };
  for (const auto& parameter : module.parameters()) move(parameter);
  std::vector<at::Tensor> elsewhere;
  for (const auto& buffer : module.buffers()) {
    // Buffers such as masks or rotary frequencies are often not in checkpoints, so they need values.
    if (includes_buffers)
      move(buffer);
    else if (buffer.device() == state_->device && !state_->device.is_cpu())
      elsewhere.push_back(buffer);
  }
  OperationReplayer remaker(state_->done);
  remaker.remake(elsewhere);
  for (const auto& buffer : elsewhere) show(buffer, remaker.made(buffer));
}

}  // namespace accel::offload
