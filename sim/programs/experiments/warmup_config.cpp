#include "sim/programs/experiments/warmup_config.hpp"

#include "reference/optim/schedules/warmup_schedules.hpp"
#include "sim/programs/experiments/key_rules.hpp"

namespace accel::programs {
namespace {

int read_warmup(YamlReader& reader) { return reader.required<int>("num_warmup_steps", at_least_zero, "0 or more"); }

template <typename Options>
Options read_steps(YamlReader& reader) {
  Options options;
  options.num_warmup_steps = read_warmup(reader);
  options.num_training_steps = reader.required<int>("num_training_steps", at_least_one, "1 or more");
  return options;
}

double read_cycles(YamlReader& reader) {
  return reader.optional<double>("num_cycles", finite_at_least_zero, "a number of 0 or more").value_or(0.5);
}

template <typename Options>
Options read_min_lr(YamlReader& reader) {
  auto options = read_steps<Options>(reader);
  options.num_cycles = read_cycles(reader);
  options.min_lr = reader.optional<double>("min_lr", finite_at_least_zero, "a number of 0 or more");
  options.min_lr_rate = reader.optional<double>("min_lr_rate", finite_at_least_zero, "a number of 0 or more");
  if (reader.has("min_lr") == reader.has("min_lr_rate"))
    reader.problem("min_lr", "expected one of min_lr and min_lr_rate");
  return options;
}

// A factory of what `get` returns for an optimizer and these arguments.
template <typename Get, typename... Arguments>
ScheduleFactory made_by(Get get, Arguments... arguments) {
  return [=](const ScheduledOptimizer& optimizer) { return get(optimizer, arguments...); };
}

std::string read_type(YamlReader& reader, const std::string& key, const std::string& type) {
  const auto known = [](const auto& t) { return t == "linear" || t == "cosine" || t == "1-sqrt"; };
  return reader.optional<std::string>(key, known, "linear, cosine or 1-sqrt").value_or(type);
}

}  // namespace

ScheduleFactory read_constant_with_warmup(YamlReader& reader) {
  return made_by(get_constant_schedule_with_warmup, read_warmup(reader));
}

ScheduleFactory read_linear_with_warmup(YamlReader& reader) {
  return made_by(get_linear_schedule_with_warmup, read_steps<LinearWarmupOptions>(reader));
}

ScheduleFactory read_cosine_with_warmup(YamlReader& reader) {
  auto options = read_steps<CosineWarmupOptions>(reader);
  options.num_cycles = read_cycles(reader);
  return made_by(get_cosine_schedule_with_warmup, options);
}

ScheduleFactory read_cosine_with_hard_restarts_with_warmup(YamlReader& reader) {
  auto options = read_steps<HardRestartsWarmupOptions>(reader);
  options.num_cycles = reader.optional<int>("num_cycles", at_least_zero, "0 or more").value_or(1);
  return made_by(get_cosine_with_hard_restarts_schedule_with_warmup, options);
}

ScheduleFactory read_polynomial_decay_with_warmup(YamlReader& reader) {
  auto options = read_steps<PolynomialWarmupOptions>(reader);
  if (options.num_training_steps <= options.num_warmup_steps)
    reader.problem("num_training_steps", "expected more than num_warmup_steps");
  options.lr_end = reader.optional<double>("lr_end", finite_at_least_zero, "a number of 0 or more").value_or(1e-7);
  options.power = reader.optional<double>("power", finite_at_least_zero, "a number of 0 or more").value_or(1.0);
  return made_by(get_polynomial_decay_schedule_with_warmup, options);
}

ScheduleFactory read_inverse_sqrt(YamlReader& reader) {
  const int num_warmup_steps = read_warmup(reader);
  return made_by(get_inverse_sqrt_schedule, num_warmup_steps,
                 reader.optional<int>("timescale", at_least_one, "1 or more"));
}

ScheduleFactory read_cosine_with_min_lr_with_warmup(YamlReader& reader) {
  return made_by(get_cosine_with_min_lr_schedule_with_warmup, read_min_lr<CosineMinLrWarmupOptions>(reader));
}

ScheduleFactory read_cosine_with_min_lr_with_warmup_lr_rate(YamlReader& reader) {
  auto options = read_min_lr<CosineMinLrRateWarmupOptions>(reader);
  options.warmup_lr_rate = reader.optional<double>("warmup_lr_rate", finite_at_least_zero, "a number of 0 or more");
  return made_by(get_cosine_with_min_lr_schedule_with_warmup_lr_rate, options);
}

ScheduleFactory read_wsd(YamlReader& reader) {
  WsdOptions options;
  options.num_warmup_steps = read_warmup(reader);
  options.num_decay_steps = reader.required<int>("num_decay_steps", at_least_zero, "0 or more");
  options.num_training_steps = reader.optional<int>("num_training_steps", at_least_one, "1 or more");
  options.num_stable_steps = reader.optional<int>("num_stable_steps", at_least_zero, "0 or more");
  if (!reader.has("num_training_steps") && !reader.has("num_stable_steps")) {
    reader.problem("num_training_steps", "missing; expected num_training_steps or num_stable_steps");
  }
  options.warmup_type = read_type(reader, "warmup_type", "linear");
  options.decay_type = read_type(reader, "decay_type", "cosine");
  options.min_lr_ratio =
      reader.optional<double>("min_lr_ratio", finite_at_least_zero, "a number of 0 or more").value_or(0.0);
  options.num_cycles = read_cycles(reader);
  return made_by(get_wsd_schedule, options);
}

}  // namespace accel::programs
