// The device's operators. A few are native: allocation, views and copies. All others run the CPU's kernel on tensors
// that share the device's memory.
#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <array>
#include <cstring>
#include <optional>

#include "tests/support/fake_device/device.hpp"
#include "tests/support/fake_device/execution.hpp"
#include "tests/support/fake_device/memory.hpp"

namespace accel::testing::fake_device {
namespace {

// --- accesses -------------------------------------------------------------------------------------------------------

bool is_ours(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == kType; }

// The bytes between the first and the last element.
std::pair<const char*, std::size_t> span_of(const at::Tensor& tensor) {
  if (tensor.numel() == 0 || tensor.storage().data() == nullptr) return {nullptr, 0};
  std::int64_t last = 0;
  for (std::int64_t dim = 0; dim < tensor.dim(); ++dim) last += (tensor.size(dim) - 1) * tensor.stride(dim);
  const auto width = static_cast<std::int64_t>(tensor.element_size());
  const auto* const begin = static_cast<const char*>(tensor.storage().data()) + tensor.storage_offset() * width;
  return {begin, static_cast<std::size_t>((last + 1) * width)};
}

}  // namespace

void read(const at::Tensor& tensor, const std::string& place) {
  const auto [begin, bytes] = span_of(tensor);
  races().read(current_key(tensor.device().index()), begin, bytes, place);
}
void write(const at::Tensor& tensor, const std::string& place) {
  const auto [begin, bytes] = span_of(tensor);
  races().write(current_key(tensor.device().index()), begin, bytes, place);
}

at::Tensor on_cpu(const at::Tensor& tensor) {
  if (!is_ours(tensor)) return tensor;
  const auto storage = c10::Storage(c10::make_intrusive<c10::StorageImpl>(
      c10::StorageImpl::use_byte_size_t(), tensor.storage().nbytes(),
      c10::DataPtr(tensor.storage().mutable_data(), at::kCPU), at::getCPUAllocator(), /*resizable=*/true));
  auto alias = at::empty({0}, at::TensorOptions(tensor.scalar_type()));
  alias.set_(storage, tensor.storage_offset(), tensor.sizes(), tensor.strides());
  if (tensor.is_conj()) alias._set_conj(true);
  if (tensor.is_neg()) alias._set_neg(true);
  return alias;
}

namespace {

at::Tensor empty_on(c10::DeviceIndex index, c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType type) {
  const c10::DeviceGuard guard(device(index));
  return at::detail::empty_strided_generic(sizes, strides, &allocator(),
                                           c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), type);
}

// --- kernels of the CPU ---------------------------------------------------------------------------------------------

// Visits the tensors of an argument, also those of lists, and replaces them.
template <typename Change>
void change_tensors(c10::IValue& value, Change&& change) {
  if (value.isTensor()) {
    value = change(value.toTensor());
  } else if (value.isTensorList()) {
    std::vector<at::Tensor> changed;
    for (const at::Tensor& tensor : value.toTensorVector()) changed.push_back(change(tensor));
    value = changed;
  } else if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> changed;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      changed.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    value = changed;
  }
}

// One call: its device arguments with the CPU tensors that stand for them.
struct CallOnCpu {
  explicit CallOnCpu(std::string op) : name(std::move(op)) {}
  // A call whose tensors are known; it begins here.
  CallOnCpu(std::string op, const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& overwritten)
      : name(std::move(op)) {
    for (const auto& tensor : read) replace(tensor, /*is_written=*/false);
    for (const auto& tensor : overwritten) replace(tensor, /*is_written=*/true);
    begin();
  }
  void begin() {
    count_operator();
    if (index < 0) return;
    races().launch(current_key(index));
    for (std::size_t place = 0; place < arguments.size(); ++place)
      written[place] ? write(arguments[place].first, name) : read(arguments[place].first, name);
  }
  [[nodiscard]] const at::Tensor& cpu(std::size_t place) const { return arguments[place].second; }

  std::string name;
  c10::DeviceIndex index = -1;
  std::vector<std::pair<at::Tensor, at::Tensor>> arguments;  // (device, CPU)

  at::Tensor replace(const at::Tensor& tensor, bool is_written) {
    if (!is_ours(tensor)) return tensor;
    index = tensor.device().index();
    arguments.emplace_back(tensor, on_cpu(tensor));
    written.push_back(is_written);
    return arguments.back().second;
  }
  // A result is an argument (in place), a view of one, or new.
  at::Tensor to_device(const at::Tensor& result) {
    if (!result.defined() || !result.device().is_cpu() || index < 0) return result;
    for (auto& [ours, cpu] : arguments) {
      if (result.is_same(cpu)) {
        if (ours.sizes() != cpu.sizes()) adopt(ours, cpu);
        return ours;
      }
      if (result.has_storage() && result.numel() > 0 && result.storage().data() == cpu.storage().data())
        return ours.as_strided(result.sizes(), result.strides(), result.storage_offset());
    }
    auto ours = empty_on(index, result.sizes(), result.strides(), result.scalar_type());
    on_cpu(ours).copy_(result);
    write(ours, name);
    return ours;
  }
  // An output that the kernel has resized, so that it no longer shares memory.
  static void adopt(at::Tensor& ours, const at::Tensor& cpu) {
    ours.resize_(cpu.sizes());
    on_cpu(ours).copy_(cpu);
  }

  std::vector<bool> written;
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  CallOnCpu call(schema.operator_name().name);
  const auto num_arguments = schema.arguments().size();
  const auto first = stack->size() - num_arguments;
  for (std::size_t place = 0; place < num_arguments; ++place) {
    const auto* const alias = schema.arguments()[place].alias_info();
    change_tensors((*stack)[first + place], [&](const at::Tensor& tensor) {
      return call.replace(tensor, alias != nullptr && alias->isWrite());
    });
  }
  for (std::size_t place = 0; place < num_arguments; ++place) {
    auto& value = (*stack)[first + place];
    const auto& argument = schema.arguments()[place];
    if (value.isDevice() && value.toDevice().type() == kType) {
      call.index = value.toDevice().has_index() ? value.toDevice().index() : current_index();
      value = c10::Device(at::kCPU);
    }
    const bool is_generator = argument.name() == "generator";
    if (is_generator && value.isNone() && call.index >= 0)
      value = at::globalContext().defaultGenerator(device(call.index));
  }
  call.begin();
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
  const auto num_results = schema.returns().size();
  for (auto place = stack->size() - num_results; place < stack->size(); ++place)
    change_tensors((*stack)[place], [&](const at::Tensor& tensor) { return call.to_device(tensor); });
}

// --- native operators -----------------------------------------------------------------------------------------------

at::Tensor empty_memory_format(c10::IntArrayRef sizes, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                               std::optional<at::Device> on, std::optional<bool>,
                               std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(on && on->has_index() ? on : std::nullopt);
  return at::detail::empty_generic(sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1),
                                   c10::dtype_or_default(type), format);
}
at::Tensor empty_strided(c10::IntArrayRef sizes, c10::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device> on, std::optional<bool>) {
  return empty_on(on && on->has_index() ? on->index() : current_index(), sizes, strides, c10::dtype_or_default(type));
}

// To the host without blocking: the destination holds other bytes until the host waits.
at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  const auto index = is_ours(to) ? to.device().index() : from.device().index();
  races().launch(current_key(index));
  if (is_ours(from)) read(from, "copy");
  if (is_ours(to)) write(to, "copy");
  const bool crosses = is_ours(from) != is_ours(to);
  if (crosses && !is_pinned((is_ours(to) ? from : to).storage().data())) count_pageable_copy();
  auto target = on_cpu(to);
  if (is_ours(to) || !non_blocking) {
    target.copy_(on_cpu(from));
    const auto done = races().snapshot(current_key(index));
    if (crosses && !non_blocking) {
      host_waits_for(done);
    } else if (crosses && from.is_non_overlapping_and_dense() && is_pinned(from.storage().data())) {
      const auto [begin, bytes] = span_of(from);
      watch_pinned_memory(done, begin, bytes);
    }
    return to;
  }
  const auto source = on_cpu(from).clone();
  if (target.is_contiguous()) std::memset(target.mutable_data_ptr(), 0xff, target.nbytes());
  copy_when_host_waits(races().snapshot(current_key(index)), [target, source]() mutable { target.copy_(source); });
  return to;
}
at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  auto target = to;
  target.resize_(from.sizes());
  return copy_from(from, target, /*non_blocking=*/false);
}
at::Scalar local_scalar_dense(const at::Tensor& tensor) {
  races().launch(current_key(tensor.device().index()));
  read(tensor, "item");
  host_waits_for(races().snapshot(current_key(tensor.device().index())));
  return on_cpu(tensor).item();
}
const at::Tensor& resize(const at::Tensor& tensor, c10::SymIntArrayRef size, std::optional<at::MemoryFormat>) {
  auto* const impl = tensor.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  const auto needed = static_cast<std::size_t>(impl->numel() + impl->storage_offset()) * tensor.element_size();
  if (tensor.storage().nbytes() < needed) {
    const c10::DeviceGuard guard(tensor.device());
    resize_storage(tensor.storage(), needed);
  }
  return tensor;
}
at::Tensor as_strided(const at::Tensor& tensor, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(tensor, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides),
                                           offset ? std::optional<std::int64_t>(offset->expect_int()) : std::nullopt);
}
at::Tensor view(const at::Tensor& tensor, c10::SymIntArrayRef sizes) {
  return at::native::view(tensor, C10_AS_INTARRAYREF_SLOW(sizes));
}
at::Tensor unfold(const at::Tensor& tensor, std::int64_t dim, std::int64_t size, std::int64_t step) {
  return at::native::unfold(tensor, dim, size, step);
}
at::Tensor reshape_alias(const at::Tensor& tensor, c10::SymIntArrayRef sizes, c10::SymIntArrayRef strides) {
  return at::native::_reshape_alias(tensor, C10_AS_INTARRAYREF_SLOW(sizes), C10_AS_INTARRAYREF_SLOW(strides));
}
at::Tensor& set_storage(at::Tensor& tensor, at::Storage storage, c10::SymInt offset, c10::SymIntArrayRef sizes,
                        c10::SymIntArrayRef strides) {
  return at::native::set_storage_cpu_(tensor, std::move(storage), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(sizes),
                                      C10_AS_INTARRAYREF_SLOW(strides));
}
// LibTorch routes convolutions of unknown devices here; the CPU has no such kernel.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const std::optional<at::Tensor>& bias,
                       c10::SymIntArrayRef stride, c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation,
                       bool transposed, c10::SymIntArrayRef output_padding, c10::SymInt groups) {
  CallOnCpu call("convolution", {input, weight, bias.value_or(at::Tensor())}, {});
  return call.to_device(at::convolution_symint(call.cpu(0), call.cpu(1),
                                               bias ? std::optional(call.cpu(2)) : std::nullopt, stride, padding,
                                               dilation, transposed, output_padding, groups));
}
std::tuple<at::Tensor, at::Tensor, at::Tensor> convolution_backward(
    const at::Tensor& grad_output, const at::Tensor& input, const at::Tensor& weight, c10::SymIntArrayRef stride,
    c10::SymIntArrayRef padding, c10::SymIntArrayRef dilation, bool transposed, c10::SymIntArrayRef output_padding,
    c10::SymInt groups, std::array<bool, 3> mask) {
  CallOnCpu call("convolution_backward", {grad_output, input, weight}, {});
  const std::vector<c10::SymInt> bias_sizes{weight.sym_size(0)};
  auto [of_input, of_weight, of_bias] =
      at::convolution_backward_symint(call.cpu(0), call.cpu(1), call.cpu(2), bias_sizes, stride, padding, dilation,
                                      transposed, output_padding, groups, mask);
  return {call.to_device(of_input), call.to_device(of_weight), call.to_device(of_bias)};
}

void record_stream(at::Tensor& tensor, c10::Stream on) { record_on_stream(tensor.storage().data(), key_of(on)); }

bool has_compatible_shallow_copy_type(const at::Tensor&, const at::Tensor&) { return true; }

}  // namespace

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty_memory_format);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar_dense);
  m.impl("resize_", resize);
  m.impl("as_strided", as_strided);
  m.impl("view", view);
  m.impl("unfold", unfold);
  m.impl("_reshape_alias", reshape_alias);
  m.impl("set_.source_Storage_storage_offset", set_storage);
  m.impl("record_stream", record_stream);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
  m.impl("_has_compatible_shallow_copy_type", has_compatible_shallow_copy_type);
}
TORCH_LIBRARY_IMPL(_, PrivateUse1, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>()); }
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) { m.fallback(torch::CppFunction::makeFallthrough()); }
// The casts of the CPU's autocast, for the operators of the tests.
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(matmul, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(addmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(bmm, lower_precision_fp)
  KERNEL_PRIVATEUSEONE(mse_loss, fp32)
}

// LibTorch decomposes some operators for devices without their kernel, with other rounding than the CPU's kernel.
const bool has_operators = [] {
  static auto* const library =
      new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    const auto has = [&](c10::DispatchKey key) { return op && op->hasKernelForDispatchKey(key); };
    if (name.name.starts_with("aten::") && has(c10::DispatchKey::CPU) &&
        has(c10::DispatchKey::CompositeExplicitAutograd) && !has(c10::DispatchKey::PrivateUse1))
      library->impl(c10::toString(name).c_str(), torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }
  return true;
}();

}  // namespace accel::testing::fake_device
