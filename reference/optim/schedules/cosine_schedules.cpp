#include "reference/optim/schedules/cosine_schedules.hpp"

#include <cmath>
#include <limits>

#include "reference/optim/schedules/schedule_arithmetic.hpp"
#include "reference/optim/schedules/schedule_state.hpp"

// See Note [Recursive and closed form] in decay_schedules.cpp.
namespace accel {

using optim::kPi;

constexpr double kMostEpochs = std::numeric_limits<int>::max();

CosineAnnealingLR::CosineAnnealingLR(ScheduledOptimizer optimizer, int T_max, double eta_min)
    : LRScheduler(std::move(optimizer)), T_max_(T_max), eta_min_(eta_min) {
  check_argument(T_max != 0, "CosineAnnealingLR: T_max: expected a number other than 0, got 0");
  initial_step();
}

// The recursive form of Python: it scales the current rate, so that changes by the user or by other schedules persist.
// Its rounding differs from the closed form's, so both are needed.
std::vector<double> CosineAnnealingLR::get_lr(const std::vector<double>& current) const {
  if (is_initial()) return current;
  // A schedule that was constructed with a last_epoch has no previous rate to scale.
  if (step_count() == 1 && last_epoch() > 0) return get_closed_form_lr(current);
  auto rates = current;
  const auto epoch = static_cast<double>(last_epoch()), total = static_cast<double>(T_max_);
  // At the minimum the rate equals eta_min, and no factor can raise it again: Python adds the first increase instead.
  const bool turns = (std::int64_t{last_epoch()} - 1 - T_max_) % (std::int64_t{2} * T_max_) == 0;
  for (std::size_t group = 0; group < rates.size(); ++group) {
    auto& rate = rates[group];
    if (turns) {
      rate = rate + (base_lrs().at(group) - eta_min_) * (1 - std::cos(kPi / total)) / 2;
    } else {
      rate = (1 + std::cos(kPi * epoch / total)) / (1 + std::cos(kPi * (epoch - 1) / total)) * (rate - eta_min_) +
             eta_min_;
    }
  }
  return rates;
}

std::vector<double> CosineAnnealingLR::get_closed_form_lr(const std::vector<double>& /*current*/) const {
  auto rates = base_lrs();
  for (auto& rate : rates) rate = eta_min_ + (rate - eta_min_) * (1 + std::cos(kPi * last_epoch() / T_max_)) / 2;
  return rates;
}

void CosineAnnealingLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("T_max", T_max_, optim::not_zero<int>());
  fields("eta_min", eta_min_);
}

CosineAnnealingWarmRestarts::CosineAnnealingWarmRestarts(ScheduledOptimizer optimizer, int T_0, int T_mult,
                                                         double eta_min)
    : LRScheduler(std::move(optimizer)),
      T_0_(T_0),
      T_mult_(T_mult),
      T_i_(T_0),
      eta_min_(eta_min),
      T_cur_(last_epoch()) {
  check_argument(T_0 > 0, "CosineAnnealingWarmRestarts: T_0: expected 1 or more, got {}", T_0);
  check_argument(T_mult >= 1, "CosineAnnealingWarmRestarts: T_mult: expected 1 or more, got {}", T_mult);
  initial_step();
}

void CosineAnnealingWarmRestarts::step() {
  // The initial step, in the constructor.
  if (last_epoch() < 0) {
    T_cur_ = 0;
    T_i_ = T_0_;
    update_lr(0);
    return;
  }
  // fmod, since T_cur may be fractional after step(epoch).
  if (++T_cur_ >= static_cast<double>(T_i_)) {
    T_cur_ = std::fmod(T_cur_, static_cast<double>(T_i_));
    T_i_ *= T_mult_;
  }
  update_lr(last_epoch() + 1);
}

void CosineAnnealingWarmRestarts::step(double epoch) {
  // Also rejects NaN and values that do not fit into last_epoch.
  check_argument(epoch >= 0 && epoch < kMostEpochs,
                 "CosineAnnealingWarmRestarts: step: expected an epoch of 0 or more, got {}", epoch);
  T_cur_ = epoch;
  T_i_ = T_0_;
  if (epoch >= T_0_ && T_mult_ == 1) {
    T_cur_ = std::fmod(epoch, static_cast<double>(T_0_));
  } else if (epoch >= T_0_) {
    // The sum of a geometric series, solved for the number of terms, as in Python; integer powers avoid its rounding.
    const auto num_restarts =
        static_cast<int>(std::log(epoch / T_0_ * (T_mult_ - 1) + 1) / std::log(static_cast<double>(T_mult_)));
    std::int64_t power = 1;
    for (int restart = 0; restart < num_restarts; ++restart) power *= T_mult_;
    T_cur_ = epoch - static_cast<double>(T_0_ * (power - 1)) / (T_mult_ - 1);
    T_i_ = T_0_ * power;
  }
  // Python stores floor(epoch) as last_epoch.
  update_lr(static_cast<int>(epoch));
}

std::vector<double> CosineAnnealingWarmRestarts::get_lr(const std::vector<double>& /*current*/) const {
  auto rates = base_lrs();
  for (auto& rate : rates)
    rate = eta_min_ + (rate - eta_min_) * (1 + std::cos(kPi * T_cur_ / static_cast<double>(T_i_))) / 2;
  return rates;
}

void CosineAnnealingWarmRestarts::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("T_0", T_0_, optim::at_least(1));
  fields("T_i", T_i_, optim::at_least(std::int64_t{1}));
  fields("T_mult", T_mult_, optim::at_least(1));
  fields("eta_min", eta_min_);
  const bool is_whole = T_cur_ == std::floor(T_cur_);  // Python's value is an int then
  if (fields.writes() && is_whole) return fields.write("T_cur", static_cast<std::int64_t>(T_cur_));
  fields("T_cur", T_cur_);
}

}  // namespace accel
