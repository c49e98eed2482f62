#pragma once

#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "reference/optim/schedules/lambda_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "reference/optim/state_dict/option_fields.hpp"

/// The schedules of Hugging Face Transformers, with its names and values: the rate rises from 0 over
/// `num_warmup_steps`, then falls until `num_training_steps`.
///
///     auto linear = accel::get_linear_schedule_with_warmup(optimizer,
///         {.num_warmup_steps = 100, .num_training_steps = 1000});
///     auto cosine = accel::get_scheduler("cosine", optimizer,
///         {.num_warmup_steps = 100, .num_training_steps = 1000});
///
/// Each is a LambdaLR; its state dict contains null for the functions. Thread rule: the rank's thread. Source:
/// transformers/optimization.py of transformers 5.23.
namespace accel {

/// The fields of `num_warmup_steps` and `num_training_steps`.
template <typename Options>
constexpr auto warmup_step_fields() {
  using namespace optim;
  return std::tuple{
      OptionField{"num_warmup_steps", &Options::num_warmup_steps, kCount, Presence::kRequired},
      OptionField{"num_training_steps", &Options::num_training_steps, kCountAboveZero, Presence::kRequired}};
}

struct ConstantOptions {
  static constexpr auto fields() { return std::tuple{}; }
};
struct ConstantWarmupOptions {
  int num_warmup_steps = 0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{
        OptionField{"num_warmup_steps", &ConstantWarmupOptions::num_warmup_steps, kCount, Presence::kRequired}};
  }
};
struct LinearWarmupOptions {
  int num_warmup_steps = 0, num_training_steps = 0;

  static constexpr auto fields() { return warmup_step_fields<LinearWarmupOptions>(); }
};
struct CosineWarmupOptions {
  int num_warmup_steps = 0, num_training_steps = 0;
  double num_cycles = 0.5;  ///< periods of the cosine

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple_cat(warmup_step_fields<CosineWarmupOptions>(),
                          std::tuple{OptionField{"num_cycles", &CosineWarmupOptions::num_cycles, kFiniteAtLeastZero}});
  }
};
struct HardRestartsWarmupOptions {
  int num_warmup_steps = 0, num_training_steps = 0;
  int num_cycles = 1;  ///< number of cycles; each starts at the maximum

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple_cat(warmup_step_fields<HardRestartsWarmupOptions>(),
                          std::tuple{OptionField{"num_cycles", &HardRestartsWarmupOptions::num_cycles, kCount}});
  }
};
struct PolynomialWarmupOptions {
  int num_warmup_steps = 0, num_training_steps = 0;
  double lr_end = 1e-7, power = 1.0;

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple_cat(warmup_step_fields<PolynomialWarmupOptions>(),
                          std::tuple{OptionField{"lr_end", &PolynomialWarmupOptions::lr_end, kFiniteAtLeastZero},
                                     OptionField{"power", &PolynomialWarmupOptions::power, kFiniteAtLeastZero}});
  }
  [[nodiscard]] std::vector<optim::OptionProblem> problems_between() const;
};
struct InverseSqrtOptions {
  int num_warmup_steps = 0;
  std::optional<int> timescale = {};  ///< absent: `num_warmup_steps`, or 10,000 if that is 0

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{
        OptionField{"num_warmup_steps", &InverseSqrtOptions::num_warmup_steps, kCount, Presence::kRequired},
        OptionField{"timescale", &InverseSqrtOptions::timescale, kCountAboveZero}};
  }
};
struct CosineMinLrWarmupOptions {
  int num_warmup_steps = 0, num_training_steps = 0;
  double num_cycles = 0.5;
  std::optional<double> min_lr = {}, min_lr_rate = {};  ///< one of them: the final rate, absolute or relative

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple_cat(
        warmup_step_fields<CosineMinLrWarmupOptions>(),
        std::tuple{OptionField{"num_cycles", &CosineMinLrWarmupOptions::num_cycles, kFiniteAtLeastZero},
                   OptionField{"min_lr", &CosineMinLrWarmupOptions::min_lr, kFiniteAtLeastZero},
                   OptionField{"min_lr_rate", &CosineMinLrWarmupOptions::min_lr_rate, kFiniteAtLeastZero}});
  }
  [[nodiscard]] std::vector<optim::OptionProblem> problems_between() const;
};
struct CosineMinLrRateWarmupOptions {
  int num_warmup_steps = 0, num_training_steps = 0;
  double num_cycles = 0.5;
  std::optional<double> min_lr = {}, min_lr_rate = {};
  std::optional<double> warmup_lr_rate = {};  ///< the initial factor; absent: 1 / num_warmup_steps

  static constexpr auto fields() {
    using namespace optim;
    return std::tuple_cat(
        warmup_step_fields<CosineMinLrRateWarmupOptions>(),
        std::tuple{OptionField{"num_cycles", &CosineMinLrRateWarmupOptions::num_cycles, kFiniteAtLeastZero},
                   OptionField{"min_lr", &CosineMinLrRateWarmupOptions::min_lr, kFiniteAtLeastZero},
                   OptionField{"min_lr_rate", &CosineMinLrRateWarmupOptions::min_lr_rate, kFiniteAtLeastZero},
                   OptionField{"warmup_lr_rate", &CosineMinLrRateWarmupOptions::warmup_lr_rate, kFiniteAtLeastZero}});
  }
  [[nodiscard]] std::vector<optim::OptionProblem> problems_between() const;
};
struct WsdOptions {
  int num_warmup_steps = 0, num_decay_steps = 0;
  std::optional<int> num_training_steps = {}, num_stable_steps = {};  ///< one of them; the second takes precedence
  std::string warmup_type = "linear", decay_type = "cosine";          ///< linear, cosine or 1-sqrt
  double min_lr_ratio = 0, num_cycles = 0.5;

  static constexpr optim::Allowed<std::string> kTypes{
      [](const std::string& type) { return type == "linear" || type == "cosine" || type == "1-sqrt"; },
      "linear, cosine or 1-sqrt"};
  static constexpr auto fields() {
    using namespace optim;
    return std::tuple{OptionField{"num_warmup_steps", &WsdOptions::num_warmup_steps, kCount, Presence::kRequired},
                      OptionField{"num_decay_steps", &WsdOptions::num_decay_steps, kCount, Presence::kRequired},
                      OptionField{"num_training_steps", &WsdOptions::num_training_steps, kCountAboveZero},
                      OptionField{"num_stable_steps", &WsdOptions::num_stable_steps, kCount},
                      OptionField{"warmup_type", &WsdOptions::warmup_type, kTypes},
                      OptionField{"decay_type", &WsdOptions::decay_type, kTypes},
                      OptionField{"min_lr_ratio", &WsdOptions::min_lr_ratio, kFiniteAtLeastZero},
                      OptionField{"num_cycles", &WsdOptions::num_cycles, kFiniteAtLeastZero}};
  }
  [[nodiscard]] std::vector<optim::OptionProblem> problems_between() const;
};

std::unique_ptr<LambdaLR> get_constant_schedule(const ScheduledOptimizer& optimizer);
std::unique_ptr<LambdaLR> get_constant_schedule_with_warmup(const ScheduledOptimizer& optimizer, int num_warmup_steps);
std::unique_ptr<LambdaLR> get_linear_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                          LinearWarmupOptions options);
std::unique_ptr<LambdaLR> get_cosine_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                          CosineWarmupOptions options);
std::unique_ptr<LambdaLR> get_cosine_with_hard_restarts_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                                             HardRestartsWarmupOptions options);
/// Throws ArgumentError if the optimizer's default rate is not above `lr_end`.
std::unique_ptr<LambdaLR> get_polynomial_decay_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                                    PolynomialWarmupOptions options);
/// Without `timescale` it is `num_warmup_steps`, or 10,000 if that is 0.
std::unique_ptr<LambdaLR> get_inverse_sqrt_schedule(const ScheduledOptimizer& optimizer, int num_warmup_steps,
                                                    std::optional<int> timescale = {});
std::unique_ptr<LambdaLR> get_cosine_with_min_lr_schedule_with_warmup(const ScheduledOptimizer& optimizer,
                                                                      CosineMinLrWarmupOptions options);
std::unique_ptr<LambdaLR> get_cosine_with_min_lr_schedule_with_warmup_lr_rate(const ScheduledOptimizer& optimizer,
                                                                              CosineMinLrRateWarmupOptions options);
/// Three phases: warm-up, stable, decay.
std::unique_ptr<LambdaLR> get_wsd_schedule(const ScheduledOptimizer& optimizer, WsdOptions options);
std::unique_ptr<ReduceLROnPlateau> get_reduce_on_plateau_schedule(const ScheduledOptimizer& optimizer,
                                                                  const ReduceLROnPlateauOptions& options = {});

}  // namespace accel
