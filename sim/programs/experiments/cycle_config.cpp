#include "sim/programs/experiments/cycle_config.hpp"

#include "reference/optim/schedules/cyclic_lr.hpp"
#include "reference/optim/schedules/one_cycle_lr.hpp"
#include "sim/programs/experiments/key_rules.hpp"

namespace accel::programs {
namespace {

// Momentum and betas beyond these are no optimizer's.
template <typename Options>
void read_momentum(YamlReader& reader, Options& options, double base, double most) {
  options.cycle_momentum = reader.optional<bool>("cycle_momentum").value_or(true);
  options.base_momentum = reader.optional<double>("base_momentum", zero_to_one, "a number from 0 to 1").value_or(base);
  options.max_momentum = reader.optional<double>("max_momentum", zero_to_one, "a number from 0 to 1").value_or(most);
}

}  // namespace

ScheduleFactory read_one_cycle(YamlReader& reader) {
  OneCycleLROptions options;
  options.max_lr = reader.required<double>("max_lr", finite_at_least_zero, "a number of 0 or more");
  options.total_steps = reader.optional<int>("total_steps", at_least_one, "1 or more");
  options.epochs = reader.optional<int>("epochs", at_least_one, "1 or more");
  options.steps_per_epoch = reader.optional<int>("steps_per_epoch", at_least_one, "1 or more");
  if (!reader.has("total_steps") && !(reader.has("epochs") && reader.has("steps_per_epoch"))) {
    reader.problem("total_steps", "missing; expected total_steps, or both epochs and steps_per_epoch");
  }
  options.pct_start = reader.optional<double>("pct_start", zero_to_one, "a number from 0 to 1").value_or(0.3);
  const auto anneals = [](const auto& strategy) { return strategy == "cos" || strategy == "linear"; };
  options.anneal_strategy = reader.optional<std::string>("anneal_strategy", anneals, "cos or linear").value_or("cos");
  options.div_factor = reader.optional<double>("div_factor", finite_above_zero, "a number above 0").value_or(25.0);
  options.final_div_factor =
      reader.optional<double>("final_div_factor", finite_above_zero, "a number above 0").value_or(1e4);
  options.three_phase = reader.optional<bool>("three_phase").value_or(false);
  read_momentum(reader, options, 0.85, 0.95);
  return schedule<OneCycleLR>(options);
}

ScheduleFactory read_cyclic(YamlReader& reader) {
  CyclicLROptions options;
  options.base_lr = reader.required<double>("base_lr", finite_at_least_zero, "a number of 0 or more");
  options.max_lr = reader.required<double>("max_lr", finite_at_least_zero, "a number of 0 or more");
  options.step_size_up = reader.optional<int>("step_size_up", at_least_one, "1 or more").value_or(2000);
  options.step_size_down = reader.optional<int>("step_size_down", at_least_zero, "0 or more");
  const auto known = [](const auto& mode) {
    return mode == "triangular" || mode == "triangular2" || mode == "exp_range";
  };
  options.mode =
      reader.optional<std::string>("mode", known, "triangular, triangular2 or exp_range").value_or("triangular");
  options.gamma = reader.optional<double>("gamma", finite_at_least_zero, "a number of 0 or more").value_or(1.0);
  read_momentum(reader, options, 0.8, 0.9);
  return schedule<CyclicLR>(options);
}

}  // namespace accel::programs
