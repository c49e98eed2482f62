#include "reference/optim/schedules/decay_schedules.hpp"

#include <algorithm>

#include "reference/optim/schedules/schedule_arithmetic.hpp"
#include "reference/optim/schedules/schedule_state.hpp"

// Note [Recursive and closed form]
// Python defines most schedules twice: `get_lr` scales the current rate, so that changes by the user persist, and
// `_get_closed_form_lr` computes the rate from the epoch alone, for a schedule that starts at a milestone. The two
// round differently. Therefore both are implemented, with Python's expressions, and used where Python uses them.
namespace accel {
namespace {

std::vector<double> times(std::vector<double> rates, double factor) {
  for (auto& rate : rates) rate *= factor;
  return rates;
}

}  // namespace

StepLR::StepLR(ScheduledOptimizer optimizer, int step_size, double gamma)
    : LRScheduler(std::move(optimizer)), step_size_(step_size), gamma_(gamma) {
  check_argument(step_size >= 1, "StepLR: step_size: expected 1 or more, got {}", step_size);
  initial_step();
}

std::vector<double> StepLR::get_lr(const std::vector<double>& current) const {
  return last_epoch() == 0 || last_epoch() % step_size_ != 0 ? current : times(current, gamma_);
}

// Integer division rounds down like Python's `//`, because epochs are not negative. pow rounds once, unlike a loop of
// products.
std::vector<double> StepLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  return times(base_lrs(), optim::power(gamma_, last_epoch() / step_size_, "StepLR"));
}

void StepLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("step_size", step_size_, optim::at_least(1));
  fields("gamma", gamma_);
}

MultiStepLR::MultiStepLR(ScheduledOptimizer optimizer, const std::vector<int>& milestones, double gamma)
    : LRScheduler(std::move(optimizer)), gamma_(gamma) {
  // Python uses a Counter, so a repeated milestone counts several times.
  for (const int milestone : milestones) ++milestones_[milestone];
  initial_step();
}

std::vector<double> MultiStepLR::get_lr(const std::vector<double>& current) const {
  const auto milestone = milestones_.find(last_epoch());
  // One power for a milestone that is listed several times, as in Python; repeated products would round differently.
  return milestone == milestones_.end() ? current
                                        : times(current, optim::power(gamma_, milestone->second, "MultiStepLR"));
}

std::vector<double> MultiStepLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  // The number of milestones up to this epoch, which is Python's bisect_right on the sorted list.
  int passed = 0;
  for (const auto& [milestone, count] : milestones_) passed += milestone <= last_epoch() ? count : 0;
  return times(base_lrs(), optim::power(gamma_, passed, "MultiStepLR"));
}

// Milestones are part of the state, as in Python: loading replaces the constructor's.
void MultiStepLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("milestones", milestones_);
  fields("gamma", gamma_);
}

ConstantLR::ConstantLR(ScheduledOptimizer optimizer, double factor, int total_iters)
    : LRScheduler(std::move(optimizer)), factor_(factor), total_iters_(total_iters) {
  check_argument(!(factor > 1.0 || factor < 0), "ConstantLR: factor: expected a number from 0 to 1, got {}", factor);
  initial_step();
}

std::vector<double> ConstantLR::get_lr(const std::vector<double>& current) const {
  // Only epochs 0 and total_iters change the rate: the factor is applied once and divided out once. With total_iters 0,
  // torch would apply it for ever.
  if (last_epoch() == 0) return total_iters_ == 0 ? current : times(current, factor_);
  return last_epoch() != total_iters_ ? current : times(current, optim::divided(1.0, factor_, "ConstantLR: factor"));
}

std::vector<double> ConstantLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  return times(base_lrs(), factor_ + (last_epoch() >= total_iters_ ? 1.0 : 0.0) * (1 - factor_));
}

void ConstantLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("factor", factor_);
  fields("total_iters", total_iters_);
}

LinearLR::LinearLR(ScheduledOptimizer optimizer, double start_factor, double end_factor, int total_iters)
    : LRScheduler(std::move(optimizer)),
      start_factor_(start_factor),
      end_factor_(end_factor),
      total_iters_(total_iters) {
  check_argument(!(start_factor > 1.0 || start_factor <= 0),
                 "LinearLR: start_factor: expected a number above 0, and 1 at most, got {}", start_factor);
  check_argument(!(end_factor > 1.0 || end_factor < 0), "LinearLR: end_factor: expected a number from 0 to 1, got {}",
                 end_factor);
  initial_step();
}

std::vector<double> LinearLR::get_lr(const std::vector<double>& current) const {
  // With total_iters 0 the way has ended, where torch would remain at start_factor.
  if (last_epoch() == 0) return times(current, total_iters_ == 0 ? end_factor_ : start_factor_);
  if (is_initial() || last_epoch() > total_iters_) return current;
  // The ratio of this epoch's factor to the previous one's, which was applied to `current`.
  const double range = end_factor_ - start_factor_;
  return times(current,
               1.0 + optim::divided(range, total_iters_ * start_factor_ + (last_epoch() - 1) * range, "LinearLR"));
}

std::vector<double> LinearLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  if (total_iters_ == 0) return times(base_lrs(), end_factor_);
  // The factor stays at end_factor after total_iters.
  const double way = (end_factor_ - start_factor_) * std::min(total_iters_, last_epoch());
  return times(base_lrs(), start_factor_ + optim::divided(way, total_iters_, "LinearLR: total_iters"));
}

void LinearLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("start_factor", start_factor_);
  fields("end_factor", end_factor_);
  fields("total_iters", total_iters_);
}

ExponentialLR::ExponentialLR(ScheduledOptimizer optimizer, double gamma)
    : LRScheduler(std::move(optimizer)), gamma_(gamma) {
  initial_step();
}

std::vector<double> ExponentialLR::get_lr(const std::vector<double>& current) const {
  return is_initial() ? current : times(current, gamma_);
}

std::vector<double> ExponentialLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  return times(base_lrs(), optim::power(gamma_, last_epoch(), "ExponentialLR"));
}

void ExponentialLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("gamma", gamma_);
}

PolynomialLR::PolynomialLR(ScheduledOptimizer optimizer, int total_iters, double power)
    : LRScheduler(std::move(optimizer)), total_iters_(total_iters), power_(power) {
  initial_step();
}

std::vector<double> PolynomialLR::get_lr(const std::vector<double>& current) const {
  if (is_initial() || last_epoch() > total_iters_) return current;
  // The ratio of two consecutive factors, as in LinearLR. At total_iters the rate becomes 0 and stays 0.
  const double total = total_iters_;
  const double left = 1.0 - optim::divided(last_epoch(), total, "PolynomialLR: total_iters");
  const double left_before = 1.0 - (last_epoch() - 1) / total;
  return times(current, optim::power(optim::divided(left, left_before, "PolynomialLR"), power_, "PolynomialLR"));
}

std::vector<double> PolynomialLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  const double passed = optim::divided(std::min(total_iters_, last_epoch()), total_iters_, "PolynomialLR: total_iters");
  return times(base_lrs(), optim::power(1.0 - passed, power_, "PolynomialLR"));
}

void PolynomialLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("total_iters", total_iters_);
  fields("power", power_);
}

}  // namespace accel
