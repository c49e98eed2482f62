// A linear layer as a single autograd node. The gradients must have the same bits and become ready in the same
// order as with at::linear, because the order in which gradients become ready decides the contents of gradient
// buckets.
#include "reference/core/linear.hpp"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/mm.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

#include "reference/core/autograd_node.hpp"

namespace accel {
namespace {

using torch::autograd::isFwGradDefined;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// LibTorch's derivatives inspect strides rather than contiguity. A matrix with one row or one column is
// column-major as well, and LibTorch then multiplies in another order; such matrices are excluded.
bool is_row_major_only(const at::Tensor& matrix) {
  const auto sizes = matrix.sizes(), strides = matrix.strides();
  return strides[1] == 1 && strides[0] == sizes[1] && !(strides[0] == 1 && strides[1] == sizes[0]);
}

// True if AutogradCPU is the first dispatch key that would handle the operator. Anything before it (autocast,
// functorch, tracing, Python modes) must see at::linear itself.
bool reaches_autograd_of_cpu(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  const auto of_thread = c10::impl::tls_local_dispatch_key_set();
  const auto keys = (input.key_set() | weight.key_set() | bias.key_set() | of_thread.included_) - of_thread.excluded_;
  return keys.highestPriorityTypeId() == c10::DispatchKey::AutogradCPU;
}

bool is_dense_matrix(const at::Tensor& tensor) {
  return tensor.dim() == 2 && tensor.layout() == at::kStrided && tensor.is_floating_point() &&
         is_row_major_only(tensor) && !isFwGradDefined(tensor);
}

// With a trained input, three leaves would become ready at once, in an order that depends on the engine's queue.
bool is_trained_leaf(const at::Tensor& tensor) { return tensor.requires_grad() && tensor.is_leaf(); }

bool fits(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  return bias.defined() && bias.layout() == at::kStrided && !isFwGradDefined(bias) && is_dense_matrix(input) &&
         is_dense_matrix(weight) && reaches_autograd_of_cpu(input, weight, bias) && !is_trained_leaf(input);
}

// Replaces AddmmBackward0 and TBackward0. `mutex_` is Node's own lock; holding it makes backward safe against a
// concurrent release_variables, as in the generated nodes.
class LinearBackward : public torch::autograd::Node {
 public:
  // The edges are in the order in which LibTorch's nodes reach the leaves, which decides which gradient is ready first.
  // A view of the weight is saved, as LibTorch does: a later set_data on the weight does not change what backward uses.
  LinearBackward(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias)
      : Node(torch::autograd::collect_next_edges(bias, input, weight)) {
    if (should_compute_output(kInput)) transposed_ = SavedVariable(weight.t(), /*is_output=*/false);
    if (should_compute_output(kWeight)) input_ = SavedVariable(input, /*is_output=*/false);
  }

  variable_list apply(variable_list&& grads) override {
    const std::lock_guard lock(mutex_);
    // Unpack both, even if only one gradient is requested: unpack throws if the graph was already released.
    const auto transposed = transposed_.unpack(), input = input_.unpack();
    variable_list result(3);
    const auto grad = std::move(grads.front());
    if (!grad.defined()) return result;
    // Skip autograd dispatch unless a second derivative or a forward-mode tangent needs these operators' nodes.
    std::optional<at::AutoDispatchBelowADInplaceOrView> below_autograd;
    if (!at::GradMode::is_enabled() && !isFwGradDefined(grad)) below_autograd.emplace();
    if (task_should_compute_output(kInput)) result[kInput] = at::mm(grad, transposed.t());
    if (task_should_compute_output(kWeight)) result[kWeight] = at::mm(grad.t(), input);
    // The engine reduces this gradient to the shape of the bias, as it does for addmm.
    if (task_should_compute_output(kBias)) result[kBias] = grad;
    return result;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    input_.reset_data();
    transposed_.reset_data();
  }

  [[nodiscard]] std::string name() const override { return "LinearBackward"; }

 private:
  enum Gradient : std::size_t { kBias, kInput, kWeight };

  SavedVariable input_, transposed_;
};

}  // namespace

std::optional<at::Tensor> fused_linear(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias) {
  if (!fits(input, weight, bias)) return std::nullopt;
  decltype(make_node<LinearBackward>(input, weight, bias)) node;
  if (at::GradMode::is_enabled() && (input.requires_grad() || weight.requires_grad() || bias.requires_grad()))
    node = make_node<LinearBackward>(input, weight, bias);
  at::Tensor output;
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    output = at::addmm(bias, input, weight.t());
  }
  if (node) torch::autograd::set_history(output, node);
  return output;
}

}  // namespace accel
