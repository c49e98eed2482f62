#include "reference/tensor_parallel/operators.hpp"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/custom_class.h>

#include "reference/core/errors.hpp"
#include "reference/modules/parameter_cut.hpp"

namespace accel::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A context's saved_data stores IValues only.
struct FunctionHolder : torch::CustomClassHolder {
  explicit FunctionHolder(TensorFunction held) : function(std::move(held)) {}
  TensorFunction function;
};

struct WithGradient : torch::autograd::Function<WithGradient> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& values, const TensorFunction& forward,
                            const TensorFunction& backward) {
    context->saved_data["backward"] = c10::IValue::make_capsule(c10::make_intrusive<FunctionHolder>(backward));
    return forward(values);
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto capsule = context->saved_data["backward"].toCapsule();
    return {static_cast<const FunctionHolder&>(*capsule).function(gradients[0].contiguous()), at::Tensor(),
            at::Tensor()};
  }
};

std::int64_t positive(std::int64_t dim, const at::Tensor& values) { return dim < 0 ? dim + values.dim() : dim; }

// A function must not return its input itself: the node would mark the caller's tensor.
at::Tensor unchanged(const at::Tensor& values) { return values.view_as(values); }

}  // namespace

at::Tensor with_gradient(const at::Tensor& values, const TensorFunction& forward, const TensorFunction& backward) {
  return WithGradient::apply(values, forward, backward);
}

at::Tensor all_reduced(const at::Tensor& values, const Group& group) {
  auto sum = values.detach().clone(at::MemoryFormat::Contiguous);
  group.all_reduce(sum).wait();
  return sum;
}

at::Tensor own_part(const at::Tensor& values, std::int64_t dim, const Group& group) {
  const auto size = values.size(dim);
  check_argument(size % group.size() == 0,
                 "dimension {} of {} elements does not divide into {} equal parts; expected a multiple of {}", dim,
                 size, group.size(), group.size());
  const auto length = size / group.size();
  return values.narrow(positive(dim, values), group.rank() * length, length).contiguous();
}

at::Tensor all_gathered_parts(const at::Tensor& part, std::int64_t dim, const Group& group) {
  const auto parts = group.all_gather(part.unsqueeze(0));
  return at::cat(parts.unbind(0), positive(dim, part));
}

at::Tensor sum_scattered(const at::Tensor& values, std::int64_t dim, const Group& group) {
  auto sizes = values.sizes().vec();
  const auto axis = static_cast<std::size_t>(positive(dim, values));
  check_argument(sizes[axis] % group.size() == 0,
                 "dimension {} of {} elements does not divide into {} equal parts; expected a multiple of {}", dim,
                 sizes[axis], group.size(), group.size());
  sizes[axis] /= group.size();
  const auto parts = at::stack(values.detach().split(sizes[axis], static_cast<std::int64_t>(axis))).flatten();
  auto sum = at::empty(sizes, values.options());
  auto flat = sum.view(-1);
  group.reduce_scatter(flat, parts).wait();
  return sum;
}

Copied copy(const Replicated& values, const Group& group) {
  if (group.size() == 1) return {unchanged(values.local)};
  return {with_gradient(values.local, unchanged,
                        [group](const at::Tensor& gradient) { return all_reduced(gradient, group); })};
}

Replicated reduce(const Partial& values, const Group& group) {
  if (group.size() == 1) return {values.local};
  return {with_gradient(
      values.local, [&](const at::Tensor& part) { return all_reduced(part, group); }, unchanged)};
}

namespace detail {

at::Tensor scattered(const at::Tensor& values, std::int64_t dim, const Group& group) {
  if (group.size() == 1) return values;
  return with_gradient(
      values, [&](const at::Tensor& whole) { return own_part(whole, dim, group); },
      [dim, group](const at::Tensor& gradient) { return all_gathered_parts(gradient, dim, group); });
}

// The parts of a dimension that does not divide are those of a Shard with one section.
at::Tensor gathered(const at::Tensor& values, std::int64_t dim, const Group& group, std::int64_t uneven_length) {
  if (group.size() == 1) return values;
  if (uneven_length > 0) {
    const ParameterCut cut{.group = group, .dim = positive(dim, values), .sections = {uneven_length}};
    return with_gradient(
        values, [&](const at::Tensor& part) { return cut.whole_of(part); },
        [cut](const at::Tensor& gradient) { return cut.part_of(gradient); });
  }
  return with_gradient(
      values, [&](const at::Tensor& part) { return all_gathered_parts(part, dim, group); },
      [dim, group](const at::Tensor& gradient) { return own_part(gradient, dim, group); });
}

void check_even(std::int64_t uneven_length, const Group& group) {
  check_argument(uneven_length == 0,
                 "gather_copied: {} elements do not divide over {} tensor-parallel ranks; expected a multiple of {}",
                 uneven_length, group.size(), group.size());
}

at::Tensor gathered_copied(const at::Tensor& values, std::int64_t dim, const Group& group) {
  if (group.size() == 1) return unchanged(values);
  return with_gradient(
      values, [&](const at::Tensor& part) { return all_gathered_parts(part, dim, group); },
      [dim, group](const at::Tensor& gradient) { return sum_scattered(gradient, dim, group); });
}

at::Tensor reduce_scattered(const at::Tensor& values, std::int64_t dim, const Group& group) {
  if (group.size() == 1) return values;
  return with_gradient(
      values, [&](const at::Tensor& parts) { return sum_scattered(parts, dim, group); },
      [dim, group](const at::Tensor& gradient) { return all_gathered_parts(gradient, dim, group); });
}

}  // namespace detail

}  // namespace accel::parallel
