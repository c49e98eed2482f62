#include "sim/programs/experiments/scheduler_config.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/combined_schedules.hpp"
#include "reference/optim/schedules/cosine_schedules.hpp"
#include "reference/optim/schedules/decay_schedules.hpp"
#include "reference/optim/schedules/lambda_lr.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "sim/programs/experiments/cycle_config.hpp"
#include "sim/programs/experiments/key_rules.hpp"
#include "sim/programs/experiments/warmup_config.hpp"

namespace accel::programs {
namespace {

ScheduleFactory linear(YamlReader& reader) {
  const int warmup = reader.required<int>("warmup_steps", at_least_zero, "0 or more");
  const int total = reader.required<int>("total_steps", at_least_one, "1 or more");
  return schedule<LambdaLR>(EpochFactor([=](int k) {
    if (k < warmup) return static_cast<double>(k + 1) / (warmup + 1);
    return std::max(0.0, static_cast<double>(total - k) / std::max(1, total - warmup));
  }));
}

double read_gamma(YamlReader& reader) {
  return reader.optional<double>("gamma", finite_at_least_zero, "a number of 0 or more").value_or(0.1);
}
int read_total_iters(YamlReader& reader) {
  return reader.optional<int>("total_iters", at_least_one, "1 or more").value_or(5);
}
double read_eta_min(YamlReader& reader) {
  return reader.optional<double>("eta_min", finite_at_least_zero, "a number of 0 or more").value_or(0.0);
}

ScheduleFactory step(YamlReader& reader) {
  const int step_size = reader.required<int>("step_size", at_least_one, "1 or more");
  return schedule<StepLR>(step_size, read_gamma(reader));
}

ScheduleFactory multi_step(YamlReader& reader) {
  const auto milestones = reader.required<std::vector<int>>("milestones");
  return schedule<MultiStepLR>(milestones, read_gamma(reader));
}

ScheduleFactory constant(YamlReader& reader) {
  const double factor =
      reader.optional<double>("factor", above_zero_to_one, "a number above 0, and 1 at most").value_or(1.0 / 3);
  return schedule<ConstantLR>(factor, read_total_iters(reader));
}

ScheduleFactory linear_lr(YamlReader& reader) {
  const double start =
      reader.optional<double>("start_factor", above_zero_to_one, "a number above 0, and 1 at most").value_or(1.0 / 3);
  const double end = reader.optional<double>("end_factor", zero_to_one, "a number from 0 to 1").value_or(1.0);
  return schedule<LinearLR>(start, end, read_total_iters(reader));
}

ScheduleFactory exponential(YamlReader& reader) {
  return schedule<ExponentialLR>(reader.required<double>("gamma", finite_at_least_zero, "a number of 0 or more"));
}

ScheduleFactory polynomial(YamlReader& reader) {
  const double power = reader.optional<double>("power", finite_at_least_zero, "a number of 0 or more").value_or(1.0);
  return schedule<PolynomialLR>(read_total_iters(reader), power);
}

ScheduleFactory cosine_annealing(YamlReader& reader) {
  const int T_max = reader.required<int>("T_max", at_least_one, "1 or more");
  return schedule<CosineAnnealingLR>(T_max, read_eta_min(reader));
}

ScheduleFactory cosine_annealing_warm_restarts(YamlReader& reader) {
  const int T_0 = reader.required<int>("T_0", at_least_one, "1 or more");
  const int T_mult = reader.optional<int>("T_mult", at_least_one, "1 or more").value_or(1);
  return schedule<CosineAnnealingWarmRestarts>(T_0, T_mult, read_eta_min(reader));
}

ScheduleFactory multiplicative(YamlReader& reader) {
  const double factor = reader.required<double>("factor", finite_at_least_zero, "a number of 0 or more");
  return schedule<MultiplicativeLR>(EpochFactor([=](int) { return factor; }));
}

ScheduleFactory reduce_lr_on_plateau(YamlReader& reader) {
  ReduceLROnPlateauOptions options;
  const auto count = [&](const char* key, int& value) {
    value = reader.optional<int>(key, at_least_zero, "0 or more").value_or(value);
  };
  const auto amount = [&](const char* key, double& value) {
    value = reader.optional<double>(key, finite_at_least_zero, "a number of 0 or more").value_or(value);
  };
  const auto word = [&](const char* key, std::string& value, const char* other) {
    const auto first = value;
    value = reader
                .optional<std::string>(
                    key, [=](const auto& text) { return text == first || text == other; },
                    fmt::format("{} or {}", first, other))
                .value_or(value);
  };
  word("mode", options.mode, "max");
  word("threshold_mode", options.threshold_mode, "abs");
  options.factor =
      reader
          .optional<double>(
              "factor", [](const double& value) { return value > 0 && value < 1; }, "a number between 0 and 1")
          .value_or(options.factor);
  count("patience", options.patience);
  count("cooldown", options.cooldown);
  amount("threshold", options.threshold);
  amount("eps", options.eps);
  options.min_lr = reader.optional<double>("min_lr", finite_at_least_zero, "a number of 0 or more").value_or(0.0);
  return schedule<ReduceLROnPlateau>(options);
}

std::vector<SchedulerConfig> read_parts(YamlReader& reader) {
  std::vector<SchedulerConfig> parts;
  for (auto& part : reader.required_mappings("schedulers")) parts.push_back(read_scheduler(std::move(part)));
  if (parts.empty() && reader.has("schedulers")) reader.problem("schedulers", "expected at least one");
  if (std::any_of(parts.begin(), parts.end(), [](const auto& part) { return part.follows_metric(); })) {
    reader.problem("schedulers",
                   fmt::format("{} follows a metric, which a part is not told", SchedulerConfig::kPlateau));
  }
  return parts;
}

std::vector<ScheduleFactory> factories(const std::vector<SchedulerConfig>& parts) {
  std::vector<ScheduleFactory> makes;
  for (const auto& part : parts) makes.push_back(part.make);
  return makes;
}

ScheduleFactory chained(YamlReader& reader) { return schedule<ChainedScheduler>(factories(read_parts(reader))); }

ScheduleFactory sequential(YamlReader& reader) {
  const auto parts = read_parts(reader);
  const auto milestones = reader.required<std::vector<int>>(
      "milestones", [](const auto& list) { return std::is_sorted(list.begin(), list.end()); },
      "epochs in rising order");
  if (!parts.empty() && reader.has("milestones") && milestones.size() + 1 != parts.size()) {
    reader.problem("milestones",
                   fmt::format("expected {}, one less than schedulers, got {}", parts.size() - 1, milestones.size()));
  }
  for (std::size_t index = 1; index < parts.size(); ++index) {
    if (parts[index].name != "sequential" && parts[index].name != "chained") continue;
    reader.problem("schedulers",
                   fmt::format("{}: {} cannot begin at a milestone; put it first", index, parts[index].name));
  }
  return schedule<SequentialLR>(factories(parts), milestones);
}

using Read = ScheduleFactory (*)(YamlReader&);

const std::map<std::string, Read>& schedules() {
  static const std::map<std::string, Read> kSchedules{
      {"linear", linear},
      {"step", step},
      {"multi_step", multi_step},
      {"constant", constant},
      {"linear_lr", linear_lr},
      {"exponential", exponential},
      {"polynomial", polynomial},
      {"cosine_annealing", cosine_annealing},
      {"cosine_annealing_warm_restarts", cosine_annealing_warm_restarts},
      {"multiplicative", multiplicative},
      {SchedulerConfig::kPlateau, reduce_lr_on_plateau},
      {"one_cycle", read_one_cycle},
      {"cyclic", read_cyclic},
      {"sequential", sequential},
      {"chained", chained},
      {"constant_with_warmup", read_constant_with_warmup},
      {"linear_with_warmup", read_linear_with_warmup},
      {"cosine_with_warmup", read_cosine_with_warmup},
      {"cosine_with_hard_restarts_with_warmup", read_cosine_with_hard_restarts_with_warmup},
      {"polynomial_decay_with_warmup", read_polynomial_decay_with_warmup},
      {"inverse_sqrt", read_inverse_sqrt},
      {"cosine_with_min_lr_with_warmup", read_cosine_with_min_lr_with_warmup},
      {"cosine_with_min_lr_with_warmup_lr_rate", read_cosine_with_min_lr_with_warmup_lr_rate},
      {"wsd", read_wsd}};
  return kSchedules;
}

std::string names() {
  std::vector<std::string> names;
  for (const auto& entry : schedules()) names.push_back(entry.first);
  return fmt::format("one of {}", fmt::join(names, ", "));
}

}  // namespace

SchedulerConfig read_scheduler(YamlReader reader) {
  SchedulerConfig config;
  config.name = reader.required<std::string>(
      "name", [](const auto& name) { return schedules().contains(name); }, names());
  const auto read = schedules().find(config.name);
  if (read == schedules().end()) return config;  // its keys have no meaning
  config.make = read->second(reader);
  reader.finish_keys();
  return config;
}

std::unique_ptr<LRScheduler> build_scheduler(const std::optional<SchedulerConfig>& config,
                                             torch::optim::Optimizer& optimizer) {
  if (!config) return nullptr;
  try {
    return config->make(optimizer);
  } catch (const ArgumentError& error) {  // what only the optimizer tells
    throw ConfigError(fmt::format("scheduler: {}: {}", config->name, error.what()));
  }
}

}  // namespace accel::programs
