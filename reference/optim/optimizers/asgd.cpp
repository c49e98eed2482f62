#include "reference/optim/optimizers/asgd.hpp"

#include <ATen/ATen.h>

#include <algorithm>
#include <map>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// ASGD as torch/optim/asgd.py, _multi_tensor_asgd. See Note [Order of foreach operations].
namespace accel::optim {
namespace {

// Computes eta with tensors, in their dtype, as Python does: numbers in double would round differently. Once for all
// parameters with the same step count, which usually are all of them.
void set_etas_and_mus(TensorLists& lists, const ASGDOptions& options) {
  const auto& steps = lists["step"];
  const auto numbers = numbers_of(steps);
  std::map<double, std::pair<at::Tensor, at::Tensor>> by_step;
  std::vector<at::Tensor> etas, mus;
  for (std::size_t param = 0; param < steps.size(); ++param) {
    auto& [eta, mu] = by_step[numbers[param]];
    if (!eta.defined()) {
      eta = (steps[param] * (options.lambd * options.lr) + 1).pow(options.alpha).reciprocal() * options.lr;
      mu = at::full({}, 1 / std::max(1.0, numbers[param] - options.t0), steps[param].options());
    }
    etas.push_back(eta);
    mus.push_back(mu);
  }
  at::_foreach_copy_(lists["eta"], etas);
  at::_foreach_copy_(lists["mu"], mus);
}

}  // namespace

std::vector<StateEntry> state_entries(const ASGDOptions& options) {
  using Kind = StateEntry::Kind;
  return {{.name = "step", .kind = Kind::kScalarOnDevice},
          {.name = "eta", .kind = Kind::kScalarOnDevice, .initial = options.lr},
          {.name = "mu", .kind = Kind::kScalarOnDevice, .initial = 1},
          {.name = "ax"}};
}

void update(TensorLists& lists, const ASGDOptions& options) {
  auto grads = directed_gradients(lists, {.weight_decay = options.weight_decay, .maximize = options.maximize});
  count_steps(lists["step"]);
  // With weight decay `grads` are new tensors and may be changed; otherwise they are the parameters' own gradients.
  if (options.weight_decay != 0) {
    at::_foreach_add_(grads, lists.params, options.lambd);
  } else {
    grads = at::_foreach_add(grads, lists.params, options.lambd);
  }
  at::_foreach_addcmul_(lists.params, grads, lists["eta"], -1);
  at::_foreach_addcmul_(lists["ax"], at::_foreach_sub(lists.params, lists["ax"]), lists["mu"]);
  // For the next step: the update above used the values that the previous step has left.
  set_etas_and_mus(lists, options);
}

template class MultiTensorOptimizer<ASGDOptions>;

}  // namespace accel::optim
