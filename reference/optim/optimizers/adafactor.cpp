#include "reference/optim/optimizers/adafactor.hpp"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <limits>

#include "reference/optim/optimizers/foreach_math.hpp"
#include "reference/optim/optimizers/multi_tensor_optimizer_impl.hpp"

// Adafactor as torch/optim/_adafactor.py: _single_tensor_adafactor, or _multi_tensor_adafactor with `foreach`. The two
// round the last step differently. See Note [Order of foreach operations].
namespace accel::optim {
namespace {

double machine_epsilon(at::ScalarType dtype) {
  return AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, dtype, "machine_epsilon",
                                         [] { return static_cast<double>(std::numeric_limits<scalar_t>::epsilon()); });
}

// The root mean square of all elements, divided by `divisor`, in Python's order.
double root_mean_square(const at::Tensor& tensor, double divisor = 1) {
  return at::linalg_vector_norm(tensor, 2).item<double>() /
         (python_power(static_cast<double>(tensor.numel()), 0.5) * divisor);
}

// Python's alpha of each parameter.
std::vector<double> relative_rates(const std::vector<at::Tensor>& params, const std::vector<double>& steps,
                                   const AdafactorOptions& options) {
  std::vector<double> rates;
  for (std::size_t param = 0; param < params.size(); ++param) {
    const auto rate = std::min(options.lr, 1 / python_power(steps[param], 0.5));
    rates.push_back(std::max(std::get<1>(options.eps), root_mean_square(params[param])) * rate);
  }
  return rates;
}

// The rate of an update whose root mean square is clipped to `d`, negated.
double clipped_rate(double rate, const at::Tensor& update, const AdafactorOptions& options) {
  return -rate / std::max(1.0, root_mean_square(update, options.d));
}

at::Tensor norm_over(const at::Tensor& grad, std::int64_t dim) {
  return at::linalg_vector_norm(grad, 2, dim, /*keepdim=*/true);
}

struct Directions {
  std::vector<at::Tensor> grads;
  std::vector<at::Scalar> weights;  // of the new squares in the averages
  std::vector<double> rates;
  double eps = 0;
};

bool is_factored(TensorLists& lists) { return lists["variance"].empty(); }

at::Tensor average_squares(TensorLists& lists, std::size_t param, const Directions& directions) {
  const auto& grad = directions.grads[param];
  const auto& weight = directions.weights[param];
  if (!is_factored(lists)) return lists["variance"][param].lerp_(grad * grad, weight).clone();
  auto &row = lists["row_var"][param], &column = lists["col_var"][param];
  row.lerp_(norm_over(grad, -1).square_().div_(grad.size(-1)), weight);
  column.lerp_(norm_over(grad, -2).square_().div_(grad.size(-2)), weight);
  return row.matmul(column).div_(row.mean(/*dim=*/-2, /*keepdim=*/true).clamp_(directions.eps));
}

void update_each(TensorLists& lists, const Directions& directions, const AdafactorOptions& options) {
  for (std::size_t param = 0; param < lists.params.size(); ++param) {
    if (options.weight_decay != 0) lists.params[param].mul_(factor(1 - options.lr * options.weight_decay));
    // Squared, because the root follows.
    const auto update = average_squares(lists, param, directions).clamp_(directions.eps * directions.eps).rsqrt_();
    update.mul_(directions.grads[param]);
    lists.params[param].add_(update, clipped_rate(directions.rates[param], update, options));
  }
}

// Averages the mean squares of all gradients along `dim` into `factors`.
void average_along(std::vector<at::Tensor>& factors, std::int64_t dim, const Directions& directions) {
  std::vector<at::Tensor> means;
  std::vector<at::Scalar> sizes;
  for (const auto& grad : directions.grads) {
    means.push_back(norm_over(grad, dim));
    sizes.emplace_back(grad.size(dim));
  }
  at::_foreach_mul_(means, means);
  at::_foreach_div_(means, sizes);
  at::_foreach_lerp_(factors, means, directions.weights);
}

std::vector<at::Tensor> average_all_squares(TensorLists& lists, const Directions& directions) {
  std::vector<at::Tensor> squares, row_means;
  if (!is_factored(lists)) {
    at::_foreach_lerp_(lists["variance"], at::_foreach_mul(directions.grads, directions.grads), directions.weights);
    for (const auto& variance : lists["variance"]) squares.push_back(variance.clone());
    return squares;
  }
  const auto &rows = lists["row_var"], &columns = lists["col_var"];
  average_along(lists["row_var"], -1, directions);
  average_along(lists["col_var"], -2, directions);
  for (std::size_t param = 0; param < rows.size(); ++param) {
    squares.push_back(rows[param].matmul(columns[param]));
    row_means.push_back(rows[param].mean(/*dim=*/-2, /*keepdim=*/true));
  }
  at::_foreach_clamp_min_(row_means, directions.eps);
  at::_foreach_div_(squares, row_means);
  return squares;
}

void update_foreach(TensorLists& lists, const Directions& directions, const AdafactorOptions& options) {
  decay_parameters(lists, options.lr, options.weight_decay);
  auto updates = average_all_squares(lists, directions);
  at::_foreach_clamp_min_(updates, directions.eps * directions.eps);
  at::_foreach_rsqrt_(updates);
  at::_foreach_mul_(updates, directions.grads);
  std::vector<at::Scalar> rates;
  for (std::size_t param = 0; param < updates.size(); ++param)
    rates.emplace_back(clipped_rate(directions.rates[param], updates[param], options));
  at::_foreach_mul_(updates, rates);
  at::_foreach_add_(lists.params, updates);
}

}  // namespace

std::string AdafactorOptions::problem_of(const at::Tensor& param) {
  return param.is_complex() ? "complex parameters are unsupported; use accel::optim::Adam with fused = false" : "";
}

std::vector<StateEntry> state_entries(const AdafactorOptions& /*options*/) {
  using Kind = StateEntry::Kind;
  return {{.name = "step", .kind = Kind::kScalar},
          {.name = "row_var", .kind = Kind::kRowFactor},
          {.name = "col_var", .kind = Kind::kColumnFactor},
          {.name = "variance", .kind = Kind::kUnfactored}};
}

void update(TensorLists& lists, const AdafactorOptions& options) {
  count_steps(lists["step"]);
  const auto steps = numbers_of(lists["step"]);
  const auto weight = [&](double step) { return python_power(step, options.beta2_decay); };
  const Directions directions{.grads = directed_gradients(lists, {.maximize = options.maximize}),
                              .weights = scalars_of(steps, weight),
                              // Before the decay, which the updates begin with.
                              .rates = relative_rates(lists.params, steps, options),
                              .eps = std::get<0>(options.eps).value_or(machine_epsilon(lists.first_dtype))};
  options.foreach.value_or(false) ? update_foreach(lists, directions, options)
                                  : update_each(lists, directions, options);
}

template class MultiTensorOptimizer<AdafactorOptions>;

}  // namespace accel::optim
