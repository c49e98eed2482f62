// Virtual compute time from a cost table, as an alternative to processor time, which varies from run to run.
// Costs are exact in the number of operations and deterministic, so timelines of serial schedules are byte-identical.
#include "sim/backend/operator_clock.hpp"

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>

#include <cmath>
#include <numeric>
#include <utility>

namespace accel::sim {
namespace {

// Operators run in an order that may differ between runs: the reducer of LibTorch's DDP orders unused parameters by
// their addresses. Sums of whole quanta (2^-44 s, about 0.06 ps) are exact up to 512 s, so their order does not matter.
double whole_quanta(double seconds) { return std::ldexp(std::nearbyint(std::ldexp(seconds, 44)), -44); }

// LibTorch's callback carries no state, so the clock of the thread is found here.
thread_local OperatorClock* thread_clock = nullptr;

double product(c10::IntArrayRef sizes) { return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>()); }

const at::Tensor* tensor_at(c10::ArrayRef<const c10::IValue> inputs, std::size_t index) {
  return index < inputs.size() && inputs[index].isTensor() && inputs[index].toTensor().defined()
             ? &inputs[index].toTensor()
             : nullptr;
}

// Operations of (..., n, k) x (..., k, m): a multiplication and an addition per element of the product.
double matrix_product(const at::Tensor& a, const at::Tensor& b) {
  return 2 * product(a.sizes()) * static_cast<double>(b.size(-1));
}

// The weight has shape (out, in / groups, k...): each element is used once per output position of each sample,
// for a multiplication and an addition.
double convolution(const at::Tensor& output_like, const at::Tensor& weight) {
  const auto positions = product(output_like.sizes().slice(2)) * static_cast<double>(output_like.size(0));
  return 2 * positions * product(weight.sizes());
}

// Queries (batch, heads, queries, d) with keys (batch, heads, keys, d): the scores, and the sums of values
// weighted by them. A causal mask saves nothing, like in an implementation with two separate products.
double attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value) {
  return 2 * product(query.sizes().slice(0, 3)) * static_cast<double>(key.size(2)) *
         static_cast<double>(query.size(3) + value.size(3));
}

// Inputs only: outputs do not exist before the call, and are proportional to the inputs for elementwise operators.
double bytes_of(c10::ArrayRef<const c10::IValue> inputs) {
  double bytes = 0;
  const auto add = [&](const at::Tensor& tensor) {
    bytes += tensor.defined() && tensor.layout() == at::kStrided ? static_cast<double>(tensor.nbytes()) : 0;
  };
  for (const auto& input : inputs) {
    if (input.isTensor()) add(input.toTensor());
    if (input.isTensorList()) {
      for (const at::Tensor& tensor : input.toTensorVector()) add(tensor);
    }
  }
  return bytes;
}

// An operator that returns a view of its input computes nothing.
bool is_view(const at::RecordFunction& function) {
  const auto schema = function.operator_schema();
  if (!schema || schema->arguments().empty()) return false;
  const auto* alias = schema->arguments().front().alias_info();
  return alias != nullptr && !alias->isWrite();
}

}  // namespace

struct OperatorClock::Frame : at::ObserverContext {
  Frame* outer = nullptr;
  double flops = 0, bytes = 0;
  bool is_free = false;  // a view, or charged through an operator inside or outside of it
};

double flops_of(const at::RecordFunction& function) {
  const std::string_view name = function.name();
  const auto inputs = function.inputs();
  const auto *first = tensor_at(inputs, 0), *second = tensor_at(inputs, 1), *third = tensor_at(inputs, 2);
  if ((name == "aten::mm" || name == "aten::bmm" || name == "aten::_scaled_mm") && first && second)
    return matrix_product(*first, *second);
  if (name == "aten::mv" && first) return 2 * product(first->sizes());
  if ((name == "aten::addmm" || name == "aten::baddbmm") && second && third) return matrix_product(*second, *third);
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu" && first && second && third)
    return attention(*first, *second, *third);
  // Five products instead of two: the scores again, and the gradients of scores, queries, keys and values.
  const auto* fourth = tensor_at(inputs, 3);
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward" && second && third && fourth)
    return 2.5 * attention(*second, *third, *fourth);
  // With stride 1 and the usual padding the output has the positions of the input; strides divide them. A
  // transposed convolution has one product per position of its input.
  if (name == "aten::convolution" && first && second && inputs.size() > 6) {
    double positions = 1;
    for (const auto stride : inputs[3].toIntVector()) positions *= inputs[6].toBool() ? 1 : static_cast<double>(stride);
    return convolution(*first, *second) / positions;
  }
  // The gradients of input and weight each cost as much as the forward pass.
  if (name == "aten::convolution_backward" && first && second && third && inputs.size() > 7)
    return 2 * convolution(inputs[7].toBool() ? *second : *first, *third);
  return 0;
}

OperatorClock::OperatorClock(std::function<void(double seconds)> advance, OperatorSeconds seconds)
    : advance_(std::move(advance)), seconds_(std::move(seconds)) {
  if (!seconds_) return;
  thread_clock = this;
  handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(&OperatorClock::on_begin, &OperatorClock::on_end)
                                           .needsInputs(true)
                                           .scopes({at::RecordScope::FUNCTION}));
}

OperatorClock::~OperatorClock() {
  if (!seconds_) return;
  at::removeCallback(handle_);
  thread_clock = nullptr;
}

std::unique_ptr<at::ObserverContext> OperatorClock::on_begin(const at::RecordFunction& function) {
  auto frame = std::make_unique<Frame>();
  auto& clock = *thread_clock;
  frame->outer = std::exchange(clock.innermost_, frame.get());
  // Frames form a stack per thread. A frame inside a charged operator inherits its count, which marks it as free.
  const bool inside = frame->outer != nullptr && frame->outer->flops > 0;
  if (inside) frame->flops = frame->outer->flops;  // operators inside a charged one are not charged again
  frame->is_free = inside || is_view(function);
  if (frame->is_free) return frame;
  frame->flops = flops_of(function);
  frame->bytes = bytes_of(function.inputs());
  return frame;
}

void OperatorClock::on_end(const at::RecordFunction& function, at::ObserverContext* context) {
  auto& frame = *static_cast<Frame*>(context);
  auto& clock = *thread_clock;
  clock.innermost_ = frame.outer;
  if (frame.is_free || (frame.flops == 0 && frame.bytes == 0)) return;
  clock.advance_(whole_quanta(clock.seconds_(function.name(), frame.flops, frame.bytes)));
  if (frame.outer != nullptr) frame.outer->is_free = true;  // charged through this inner operator
}

}  // namespace accel::sim
