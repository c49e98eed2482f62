#pragma once

#include <string>
#include <tuple>
#include <vector>

#include "reference/optim/schedules/lr_scheduler.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

namespace accel {

struct GreedyLROptions {
  std::string mode = "min";  ///< or "max": which metric is better
  double factor = 0.95;      ///< between 0 and 1: rates are multiplied by it, or divided by it to raise them
  int patience = 10;         ///< number of consecutive better or worse metrics that are tolerated
  double threshold = 1e-6;
  std::string threshold_mode = "abs";  ///< or "rel"
  int cooldown = 0;                    ///< steps after a reduction that are not counted
  int warmup = 0;                      ///< steps after an increase that are not counted
  PerGroup min_lr = 1e-3, max_lr = 1.0;
  double eps = 1e-8;    ///< smaller changes are skipped
  bool smooth = false;  ///< uses the mean of the last `window_size` metrics
  int window_size = 50;
  int reset_start = 500;  ///< restarts after this many reductions with all rates at their minimum
  bool verbose = false;   ///< accepted as in Python; has no effect

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"mode", &GreedyLROptions::mode, kMetricModes},
                      OptionField{"factor", &GreedyLROptions::factor, kBetweenZeroAndOne},
                      OptionField{"patience", &GreedyLROptions::patience, kCount},
                      OptionField{"threshold", &GreedyLROptions::threshold, kFiniteAtLeastZero},
                      OptionField{"threshold_mode", &GreedyLROptions::threshold_mode, kThresholdModes},
                      OptionField{"cooldown", &GreedyLROptions::cooldown, kCount},
                      OptionField{"warmup", &GreedyLROptions::warmup, kCount},
                      OptionField{"min_lr", &GreedyLROptions::min_lr, kFiniteAtLeastZero},
                      OptionField{"max_lr", &GreedyLROptions::max_lr, kFiniteAtLeastZero},
                      OptionField{"eps", &GreedyLROptions::eps, kFiniteAtLeastZero},
                      OptionField{"smooth", &GreedyLROptions::smooth},
                      OptionField{"window_size", &GreedyLROptions::window_size, kCountAboveZero},
                      OptionField{"reset_start", &GreedyLROptions::reset_start, kCount},
                      OptionField{"verbose", &GreedyLROptions::verbose}};
  }
};

/// Raises the rate while a metric improves, and lowers it while it does not: GreedyLR of Transformers 5.
///
///     accel::GreedyLR scheduler(optimizer, {.patience = 3, .smooth = true});
///     scheduler.step(loss);
///
/// Every rank must pass the same metric, or the ranks' rates differ. Thread rule: the rank's thread. Source:
/// transformers/optimization.py, GreedyLR; arXiv:2512.14527.
class GreedyLR : public LRScheduler {
 public:
  using Options = GreedyLROptions;
  explicit GreedyLR(ScheduledOptimizer optimizer, const Options& options = {});
  void step(double metric) override;
  /// Throws ArgumentError, because this schedule requires a metric.
  void step() override;

 private:
  std::vector<double> get_lr(const std::vector<double>& current) const override;
  void state_fields(optim::StateFields& fields) override;
  void loaded() override;
  double smoothed(double metric);
  bool is_better(double metric) const;
  std::vector<double> raised(std::vector<double> rates);
  std::vector<double> reduced(std::vector<double> rates);
  void begin();

  std::string mode_;
  double factor_;
  int patience_;
  double threshold_;
  std::string threshold_mode_;
  int cooldown_, warmup_;
  std::vector<double> min_lrs_, max_lrs_, init_lrs_;
  double eps_;
  bool smooth_;
  int window_size_, reset_start_original_;
  double best_ = 0.0;
  int num_bad_epochs_ = 0, num_good_epochs_ = 0, cooldown_counter_ = 0, warmup_counter_ = 0, reset_start_ = 0;
  std::vector<double> recent_;  // the last metrics, at most `window_size`
  double sum_of_recent_ = 0.0;
  std::vector<double> next_;  // the rates that the current step sets
};

}  // namespace accel
