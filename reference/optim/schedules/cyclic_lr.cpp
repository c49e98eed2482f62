#include "reference/optim/schedules/cyclic_lr.hpp"

#include <torch/optim/optimizer.h>

#include "reference/optim/schedules/schedule_arithmetic.hpp"
#include "reference/optim/schedules/schedule_state.hpp"
#include "reference/optim/state_dict/param_group_options.hpp"

// CyclicLR as in torch, including its order of assignments to rates and momentum, which decides what an earlier
// schedule on the same optimizer leaves behind.
namespace accel {

// Sets the groups' rates to `base_lr` before the base class reads them, so that they become the initial rates of a
// first schedule, as in Python.
ScheduledOptimizer CyclicLR::begin(ScheduledOptimizer optimizer, const Options& options) {
  const auto rates = options.base_lr.of(*optimizer.optimizer, "CyclicLR: base_lr");
  if (optimizer.last_epoch != -1) return optimizer;
  auto& groups = optimizer.optimizer->param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(rates[group]);
  return optimizer;
}

CyclicLR::CyclicLR(ScheduledOptimizer optimizer, const Options& options)
    : LRScheduler(begin(std::move(optimizer), options)),
      max_lrs_(options.max_lr.of(this->optimizer(), "CyclicLR: max_lr")),
      mode_(options.mode),
      gamma_(options.gamma),
      scale_fn_(options.scale_fn),
      scale_mode_(options.scale_mode),
      cycle_momentum_(options.cycle_momentum) {
  const int down = options.step_size_down.value_or(options.step_size_up);
  check_argument(options.step_size_up >= 1, "CyclicLR: step_size_up: expected 1 or more, got {}", options.step_size_up);
  check_argument(down >= 0, "CyclicLR: step_size_down: expected 0 or more, got {}", down);
  check_argument(scale_fn_ || mode_ == "triangular" || mode_ == "triangular2" || mode_ == "exp_range",
                 "CyclicLR: mode: expected triangular, triangular2 or exp_range, or a scale_fn, got '{}'", mode_);
  check_argument(scale_mode_ == "cycle" || scale_mode_ == "iterations",
                 "CyclicLR: scale_mode: expected cycle or iterations, got '{}'", scale_mode_);
  // Doubles, as in Python, where both are converted to float before they are added.
  total_size_ = static_cast<double>(options.step_size_up) + down;
  step_ratio_ = options.step_size_up / total_size_;
  init_scale_mode();
  if (cycle_momentum_) init_momentum(options);
  initial_step();
  // After the initial step: Python computes epoch 0 from an earlier schedule's initial rates, if there is one.
  set_base_lrs(options.base_lr.of(this->optimizer(), "CyclicLR: base_lr"));
}

// Also called after loading, since a loaded mode decides the scale mode.
void CyclicLR::init_scale_mode() {
  if (!scale_fn_) scale_mode_ = mode_ == "exp_range" ? "iterations" : "cycle";
}

// The optimizer's defaults decide which option is cycled, as in Python, even if groups have others.
void CyclicLR::init_momentum(const Options& options) {
  const auto kind = optim::momentum_kind(optimizer().defaults());
  check_argument(kind.has_value(),
                 "CyclicLR: cycle_momentum: the optimizer has neither momentum nor betas; set cycle_momentum to false");
  use_beta1_ = kind == optim::MomentumKind::kBeta1;
  base_momentums_ = options.base_momentum.of(optimizer(), "CyclicLR: base_momentum");
  max_momentums_ = options.max_momentum.of(optimizer(), "CyclicLR: max_momentum");
}

double CyclicLR::scale(double cycle) const {
  const double x = scale_mode_ == "cycle" ? cycle : last_epoch();
  if (scale_fn_) return scale_fn_(x);
  if (mode_ == "triangular2") return 1 / optim::power(2.0, x - 1, "CyclicLR: triangular2");
  return mode_ == "exp_range" ? optim::power(gamma_, x, "CyclicLR: exp_range") : 1.0;
}

// The expressions are Python's, term by term: another form of the triangle would round differently.
CyclicLR::Place CyclicLR::place() const {
  const double cycle = std::floor(1 + last_epoch() / total_size_);
  const double x = 1.0 + last_epoch() / total_size_ - cycle;
  const double scale_factor = x <= step_ratio_ ? x / step_ratio_ : (x - 1) / (step_ratio_ - 1);
  return {scale_factor, scale(cycle)};
}

std::vector<double> CyclicLR::get_lr(const std::vector<double>& /*current*/) const {
  const auto [scale_factor, scale] = place();
  auto rates = base_lrs();
  for (std::size_t group = 0; group < rates.size(); ++group) {
    const double height = (max_lrs_[group] - rates[group]) * scale_factor;
    rates[group] = rates[group] + height * scale;
  }
  return rates;
}

std::vector<double> CyclicLR::get_momentum() const {
  if (!cycle_momentum_) return {};
  const auto [scale_factor, scale] = place();
  auto momentum = max_momentums_;
  for (std::size_t group = 0; group < momentum.size(); ++group) {
    const double height = (momentum[group] - base_momentums_[group]) * scale_factor;
    momentum[group] = momentum[group] - height * scale;
  }
  return momentum;
}

void CyclicLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("max_lrs", max_lrs_, one_per_group());
  fields("total_size", total_size_, {[](double size) { return size > 0; }, "a number above 0"});
  fields("step_ratio", step_ratio_,
         {[](double ratio) { return ratio > 0 && ratio <= 1; }, "a number above 0, and 1 at most"});
  // With a scale_fn Python does not look at the mode, so any text is accepted.
  fields("mode", mode_,
         scale_fn_ ? optim::Rule<std::string>() : optim::one_of({"triangular", "triangular2", "exp_range"}));
  fields("gamma", gamma_);
  fields("scale_mode", scale_mode_, optim::one_of({"cycle", "iterations"}));
  // Python stores the function's __dict__ here, or None for plain functions; there is nothing to load.
  fields.constant("_scale_fn_custom", {});
  fields("cycle_momentum", cycle_momentum_, optim::unchanged_since_construction(cycle_momentum_));
  if (!cycle_momentum_) return;
  fields("use_beta1", use_beta1_, optim::unchanged_since_construction(use_beta1_));
  fields("base_momentums", base_momentums_, one_per_group());
  fields("max_momentums", max_momentums_, one_per_group());
}

}  // namespace accel
