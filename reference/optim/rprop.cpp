#include "reference/optim/rprop.hpp"

#include <ATen/ATen.h>

#include "reference/optim/foreach_math.hpp"
#include "reference/optim/multi_tensor_optimizer_impl.hpp"

namespace accel::optim {

std::vector<OptionProblem> problems_of(const RpropOptions& options) {
  const auto [smaller, larger] = options.etas;
  OptionChecks checks;
  checks.at_least_zero("lr", options.lr);
  checks.expect(0 < smaller && smaller < 1 && 1 < larger, "etas", fmt::format("expected a number in (0, 1) and one over 1, got ({}, {})", smaller, larger));
  return checks.take();
}

std::vector<StateEntry> state_entries(const RpropOptions& options) {
  return {{.name = "step", .kind = StateEntry::Kind::kScalar}, {.name = "prev"}, {.name = "step_size", .initial = options.lr}};
}

// As in Python, some of it runs once for each parameter: there are no multi-tensor kernels for masks.
void update(TensorLists& lists, const RpropOptions& options) {
  const auto [smaller, larger] = options.etas;
  const auto [least, most] = options.step_sizes;
  auto &prevs = lists["prev"], &sizes = lists["step_size"];
  count_steps(lists["step"]);
  auto signs = at::_foreach_mul(lists.grads, prevs);
  at::_foreach_copy_(prevs, lists.grads);
  if (options.maximize) {
    at::_foreach_neg_(signs);
    at::_foreach_neg_(prevs);
  }
  at::_foreach_sign_(signs);
  for (auto& sign : signs) {
    sign.masked_fill_(sign.gt(0), larger);
    sign.masked_fill_(sign.lt(0), smaller);
    sign.masked_fill_(sign.eq(0), 1);
  }
  at::_foreach_mul_(sizes, signs);
  for (auto& size : sizes) size.clamp_(least, most);
  // Where the gradient turned, the step is left out, and the next one counts as a first.
  for (std::size_t param = 0; param < prevs.size(); ++param) prevs[param].masked_fill_(signs[param].eq(smaller), 0);
  at::_foreach_addcmul_(lists.params, at::_foreach_sign(prevs), sizes, -1);
}

template class MultiTensorOptimizer<RpropOptions>;

}  // namespace accel::optim
