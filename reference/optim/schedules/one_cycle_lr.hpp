#pragma once

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

namespace accel {

struct OneCycleLROptions {
  PerGroup max_lr = {};
  std::optional<int> total_steps = {};  ///< or `epochs` and `steps_per_epoch`
  std::optional<int> epochs = {}, steps_per_epoch = {};
  double pct_start = 0.3;               ///< the fraction of the steps during which the rate rises
  std::string anneal_strategy = "cos";  ///< or "linear"
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.85, max_momentum = 0.95;
  double div_factor = 25.0;       ///< initial_lr = max_lr / div_factor
  double final_div_factor = 1e4;  ///< min_lr = initial_lr / final_div_factor
  bool three_phase = false;

  static constexpr optim::Allowed<std::string> kAnnealStrategies{
      [](const std::string& name) { return name == "cos" || name == "linear"; }, "cos or linear"};
  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"max_lr", &OneCycleLROptions::max_lr, kFiniteAtLeastZero, Presence::kRequired},
                      OptionField{"total_steps", &OneCycleLROptions::total_steps, kCountAboveZero},
                      OptionField{"epochs", &OneCycleLROptions::epochs, kCountAboveZero},
                      OptionField{"steps_per_epoch", &OneCycleLROptions::steps_per_epoch, kCountAboveZero},
                      OptionField{"pct_start", &OneCycleLROptions::pct_start, kFromZeroToOne},
                      OptionField{"anneal_strategy", &OneCycleLROptions::anneal_strategy, kAnnealStrategies},
                      OptionField{"cycle_momentum", &OneCycleLROptions::cycle_momentum},
                      OptionField{"base_momentum", &OneCycleLROptions::base_momentum, kFromZeroToOne},
                      OptionField{"max_momentum", &OneCycleLROptions::max_momentum, kFromZeroToOne},
                      OptionField{"div_factor", &OneCycleLROptions::div_factor, kFiniteAboveZero},
                      OptionField{"final_div_factor", &OneCycleLROptions::final_div_factor, kFiniteAboveZero},
                      OptionField{"three_phase", &OneCycleLROptions::three_phase}};
  }
  [[nodiscard]] std::vector<optim::OptionProblem> problems_between() const;
};

/// Raises the rate to `max_lr` and lowers it to `min_lr`; the momentum, or Adam's first beta, moves in the opposite
/// direction.
///
///     accel::OneCycleLR scheduler(optimizer, {.max_lr = 0.1, .epochs = 10, .steps_per_epoch = 100});
///
/// Throws ArgumentError for a step beyond `total_steps`. Each schedule keeps its own rates of the cycle: in Python, two
/// of them on one optimizer overwrite each other's. Thread rule: the rank's thread. Source:
/// torch/optim/lr_scheduler.py, OneCycleLR.
class OneCycleLR : public LRScheduler {
 public:
  using Options = OneCycleLROptions;
  OneCycleLR(ScheduledOptimizer optimizer, Options options);
  [[nodiscard]] std::optional<int> total_steps() const override { return total_steps_; }

 private:
  struct Phase {
    double end_step;
    std::string start_lr = {}, end_lr = {}, start_momentum = {}, end_momentum = {};  // keys for `named`
  };
  struct Place;  // a position within a phase
  static ScheduledOptimizer begin(ScheduledOptimizer optimizer, const Options& options);
  void init_momentum(const Options& options);
  void init_phases(double pct_start, bool three_phase);
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_momentum() const override;
  Place place() const;
  double between(double start, double end, double part) const;
  const std::vector<double>& named(const std::string& name) const;
  void state_fields(optim::StateFields& fields) override;
  static void phase_fields(optim::StateFields& fields, Phase& phase);
  void write_phases(optim::StateFields& fields);
  void read_phases(optim::StateFields& fields);

  int total_steps_;
  std::vector<Phase> phases_;
  std::string anneal_func_type_;
  bool cycle_momentum_, use_beta1_ = false;
  std::vector<double> max_lrs_, min_lrs_, base_momentums_, max_momentums_;
};

}  // namespace accel
