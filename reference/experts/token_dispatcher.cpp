#include "reference/experts/token_dispatcher.hpp"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <numeric>

#include "reference/core/errors.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::parallel {
namespace {

using Counts = std::vector<std::int64_t>;

Counts to_counts(const at::Tensor& numbers) {
  const auto flat = numbers.cpu().contiguous();
  return {flat.const_data_ptr<std::int64_t>(), flat.const_data_ptr<std::int64_t>() + flat.numel()};
}

at::Tensor to_tensor(const Counts& numbers, c10::Device device) {
  return at::tensor(numbers, at::TensorOptions(at::kLong)).to(device);
}

// The sums of consecutive equal groups.
Counts sums_of_groups(const Counts& numbers, int num_groups) {
  const auto length = static_cast<std::ptrdiff_t>(numbers.size()) / num_groups;
  Counts sums;
  for (auto begin = numbers.begin(); begin != numbers.end(); begin += length)
    sums.push_back(std::accumulate(begin, begin + length, std::int64_t{0}));
  return sums;
}

at::Tensor all_to_all(const at::Tensor& rows, const Counts& sent, const Counts& received, const Group& group) {
  auto sizes = rows.sizes().vec();
  sizes[0] = std::accumulate(received.begin(), received.end(), std::int64_t{0});
  auto output = at::empty(sizes, rows.options());
  group.all_to_all(output, rows.detach().contiguous(), received, sent).wait();
  return output;
}

// The rows for each of this rank's experts, from every rank.
Counts exchanged_counts(const Counts& rows_per_expert, c10::Device device, const Group& group) {
  if (group.size() == 1) return rows_per_expert;
  const auto sent = to_tensor(rows_per_expert, device);
  auto received = at::empty_like(sent);
  group.all_to_all(received, sent).wait();
  return to_counts(received);
}

// Connected to the graph even if it needs no gradient, so that every rank runs the same collectives in backward.
at::Tensor in_graph(const at::Tensor& values) {
  if (!c10::GradMode::is_enabled() || values.requires_grad()) return values;
  return values.detach().requires_grad_();
}

}  // namespace

at::Tensor exchanged_rows(const at::Tensor& rows, const Counts& sent, const Counts& received, const Group& group) {
  if (group.size() == 1) return rows;
  return with_gradient(
      rows, [&](const at::Tensor& values) { return all_to_all(values, sent, received, group); },
      [=](const at::Tensor& gradient) { return all_to_all(gradient, received, sent, group); });
}

TokenDispatcher::TokenDispatcher(const at::Tensor& choices, const DispatchOptions& options, Group group)
    : group_(std::move(group)), num_tokens_(choices.size(0)), top_k_(options.top_k) {
  check_argument(choices.dim() == 2 && choices.size(1) == top_k_ && choices.scalar_type() == at::kLong,
                 "TokenDispatcher: got choices of sizes {} and type {}; expected (tokens, {}) and int64",
                 c10::str(choices.sizes()), c10::toString(choices.scalar_type()), top_k_);
  check_argument(options.num_experts % group_.size() == 0,
                 "TokenDispatcher: {} experts do not divide over {} ranks; expected a multiple of {}",
                 options.num_experts, group_.size(), group_.size());
  const auto plan = plan_dispatch(to_counts(choices), options);
  sent_per_rank_ = sums_of_groups(plan.rows_per_expert, group_.size());
  arrival_ = plan_arrival(exchanged_counts(plan.rows_per_expert, choices.device(), group_), group_.size());
  sent_ = to_tensor(plan.choices, choices.device());
  order_ = to_tensor(arrival_.order, choices.device());
}

// One row per choice first: no row is then selected twice, and gradients are added in the order of choices on every
// device.
at::Tensor TokenDispatcher::dispatch(const at::Tensor& values) const {
  check_argument(values.dim() == 2 && values.size(0) == num_tokens_,
                 "TokenDispatcher: got values of sizes {}; expected ({}, width)", c10::str(values.sizes()),
                 num_tokens_);
  const auto sent = in_graph(values).repeat_interleave(top_k_, 0).index_select(0, sent_);
  return exchanged_rows(sent, sent_per_rank_, arrival_.rows_per_rank, group_).index_select(0, order_);
}

at::Tensor TokenDispatcher::combine(const at::Tensor& results, const at::Tensor& gates) const {
  const auto in_order_of_arrival = results.index_select(0, at::argsort(order_));
  const auto returned = exchanged_rows(in_order_of_arrival, arrival_.rows_per_rank, sent_per_rank_, group_);
  const auto width = returned.size(1);
  const auto per_choice = at::zeros({num_tokens_ * top_k_, width}, returned.options()).index_copy(0, sent_, returned);
  return (per_choice.view({num_tokens_, top_k_, width}) * gates.to(returned.scalar_type()).unsqueeze(-1)).sum(1);
}

}  // namespace accel::parallel
