#pragma once

#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

namespace accel {

struct CyclicLROptions {
  PerGroup base_lr = {}, max_lr = {};
  int step_size_up = 2000;
  std::optional<int> step_size_down = {};  ///< absent: as `step_size_up`
  std::string mode = "triangular";         ///< or "triangular2", "exp_range"
  double gamma = 1.0;                      ///< of exp_range
  std::function<double(double)> scale_fn;  ///< instead of `mode`: the height of a cycle, from 0 to 1
  std::string scale_mode = "cycle";        ///< the argument of `scale_fn`: number of the "cycle", or of "iterations"
  bool cycle_momentum = true;
  PerGroup base_momentum = 0.8, max_momentum = 0.9;

  static constexpr optim::Allowed<std::string> kModes{
      [](const std::string& mode) { return mode == "triangular" || mode == "triangular2" || mode == "exp_range"; },
      "triangular, triangular2 or exp_range"};
  /// Files cannot set `scale_fn` and `scale_mode`.
  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"base_lr", &CyclicLROptions::base_lr, kFiniteAtLeastZero, Presence::kRequired},
                      OptionField{"max_lr", &CyclicLROptions::max_lr, kFiniteAtLeastZero, Presence::kRequired},
                      OptionField{"step_size_up", &CyclicLROptions::step_size_up, kCountAboveZero},
                      OptionField{"step_size_down", &CyclicLROptions::step_size_down, kCount},
                      OptionField{"mode", &CyclicLROptions::mode, kModes},
                      OptionField{"gamma", &CyclicLROptions::gamma, kFiniteAtLeastZero},
                      OptionField{"cycle_momentum", &CyclicLROptions::cycle_momentum},
                      OptionField{"base_momentum", &CyclicLROptions::base_momentum, kFromZeroToOne},
                      OptionField{"max_momentum", &CyclicLROptions::max_momentum, kFromZeroToOne}};
  }
};

/// Cycles the rate from `base_lr` to `max_lr` and back; the momentum, or Adam's first beta, moves in the opposite
/// direction.
///
///     accel::CyclicLR scheduler(optimizer,
///                               {.base_lr = 0.01, .max_lr = 0.1, .step_size_up = 100, .mode = "triangular2"});
///
/// As in Python, the state dict does not contain `scale_fn`. Thread rule: the rank's thread. Source:
/// torch/optim/lr_scheduler.py, CyclicLR.
class CyclicLR : public LRScheduler {
 public:
  using Options = CyclicLROptions;
  CyclicLR(ScheduledOptimizer optimizer, const Options& options);

 private:
  struct Place {
    double scale_factor;  // the fraction of the height that is reached, from 0 to 1
    double scale;         // the height of this cycle
  };
  static ScheduledOptimizer begin(ScheduledOptimizer optimizer, const Options& options);
  void init_momentum(const Options& options);
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  std::vector<double> get_momentum() const override;
  Place place() const;
  double scale(double cycle) const;
  void state_fields(optim::StateFields& fields) override;
  void loaded() override { init_scale_mode(); }
  void init_scale_mode();

  std::vector<double> max_lrs_;
  double total_size_, step_ratio_;
  std::string mode_;
  double gamma_;
  std::function<double(double)> scale_fn_;
  std::string scale_mode_;
  bool cycle_momentum_, use_beta1_ = false;
  std::vector<double> base_momentums_, max_momentums_;
};

}  // namespace accel
