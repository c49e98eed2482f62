#include "reference/optim/schedules/one_cycle_lr.hpp"

#include "reference/optim/schedules/schedule_arithmetic.hpp"
#include "reference/optim/schedules/schedule_state.hpp"
#include "reference/optim/state_dict/param_group_options.hpp"

// OneCycleLR as in torch. Phases refer to their rates by name ("initial_lr", "max_lr", ...), because Python's state
// dict stores them in this way.
namespace accel {

std::vector<optim::OptionProblem> OneCycleLROptions::problems_between() const {
  if (total_steps || (epochs && steps_per_epoch)) return {};
  return {{"total_steps", "missing; expected total_steps, or both epochs and steps_per_epoch"}};
}

namespace {

// Python's precedence: total_steps if it is set, else the product, which is checked for overflow of int.
int total_steps_of(const OneCycleLROptions& options) {
  const auto positive = [](const char* name, int value) {
    check_argument(value > 0, "OneCycleLR: {}: expected 1 or more, got {}", name, value);
    return value;
  };
  if (options.total_steps) return positive("total_steps", *options.total_steps);
  check_argument(options.epochs && options.steps_per_epoch,
                 "OneCycleLR: expected total_steps, or both epochs and steps_per_epoch");
  const auto steps =
      std::int64_t{positive("epochs", *options.epochs)} * positive("steps_per_epoch", *options.steps_per_epoch);
  check_argument(steps < (1 << 30), "OneCycleLR: {} epochs of {} steps are too many; expected less than 2^30 steps",
                 *options.epochs, *options.steps_per_epoch);
  return static_cast<int>(steps);
}

}  // namespace

// Replaces the initial rates before the base class reads them: this schedule starts at max_lr / div_factor, not at the
// optimizer's rate. A resumed one keeps those that it is given.
ScheduledOptimizer OneCycleLR::begin(ScheduledOptimizer optimizer, const Options& options) {
  if (optimizer.last_epoch != -1) return optimizer;
  optimizer.initial_lrs = options.max_lr.of(*optimizer.optimizer, "OneCycleLR: max_lr");
  for (auto& rate : *optimizer.initial_lrs) rate = optim::divided(rate, options.div_factor, "OneCycleLR: div_factor");
  return optimizer;
}

OneCycleLR::OneCycleLR(ScheduledOptimizer optimizer, Options options)
    : LRScheduler(begin(std::move(optimizer), options)),
      total_steps_(total_steps_of(options)),
      anneal_func_type_(options.anneal_strategy),
      cycle_momentum_(options.cycle_momentum),
      max_lrs_(options.max_lr.of(this->optimizer(), "OneCycleLR: max_lr")),
      min_lrs_(initial_lrs()) {
  check_argument(options.pct_start >= 0 && options.pct_start <= 1,
                 "OneCycleLR: pct_start: expected a number from 0 to 1, got {}", options.pct_start);
  check_argument(anneal_func_type_ == "cos" || anneal_func_type_ == "linear",
                 "OneCycleLR: anneal_strategy: expected cos or linear, got '{}'", anneal_func_type_);
  for (auto& rate : min_lrs_) rate = optim::divided(rate, options.final_div_factor, "OneCycleLR: final_div_factor");
  init_phases(options.pct_start, options.three_phase);
  if (cycle_momentum_) init_momentum(options);
  // Python stores the rates of the cycle in the parameter groups, so they are part of the optimizer's state dict.
  keep_in_groups("max_lr", max_lrs_);
  keep_in_groups("min_lr", min_lrs_);
  if (cycle_momentum_) {
    keep_in_groups("max_momentum", max_momentums_);
    keep_in_groups("base_momentum", base_momentums_);
  }
  initial_step();
}

// The bounds are fractional, as in Python; phases end at step numbers, not after counts, hence the - 1 and - 2.
void OneCycleLR::init_phases(double pct_start, bool three_phase) {
  phases_ = {{pct_start * total_steps_ - 1, "initial_lr", "max_lr", "max_momentum", "base_momentum"}};
  if (three_phase) {
    phases_.push_back({2 * pct_start * total_steps_ - 2, "max_lr", "initial_lr", "base_momentum", "max_momentum"});
    phases_.push_back({total_steps_ - 1.0, "initial_lr", "min_lr", "max_momentum", "max_momentum"});
  } else {
    phases_.push_back({total_steps_ - 1.0, "max_lr", "min_lr", "base_momentum", "max_momentum"});
  }
}

void OneCycleLR::init_momentum(const Options& options) {
  const auto kind = optim::momentum_kind(optimizer().defaults());
  check_argument(
      kind.has_value(),
      "OneCycleLR: cycle_momentum: the optimizer has neither momentum nor betas; set cycle_momentum to false");
  use_beta1_ = kind == optim::MomentumKind::kBeta1;
  max_momentums_ = options.max_momentum.of(optimizer(), "OneCycleLR: max_momentum");
  base_momentums_ = options.base_momentum.of(optimizer(), "OneCycleLR: base_momentum");
}

struct OneCycleLR::Place {
  const Phase& phase;
  double part;  // the fraction of the phase that has passed
};

OneCycleLR::Place OneCycleLR::place() const {
  double start_step = 0.0;
  for (const auto& phase : phases_) {
    // The last phase also covers the step total_steps itself, which Python allows.
    if (last_epoch() <= phase.end_step || &phase == &phases_.back()) {
      return {phase, optim::divided(last_epoch() - start_step, phase.end_step - start_step,
                                    "OneCycleLR: a phase has no steps; change pct_start or total_steps")};
    }
    start_step = phase.end_step;
  }
  ensure(false, "OneCycleLR has no phases");
  std::abort();
}

// Python's _annealing_linear and _annealing_cos.
double OneCycleLR::between(double start, double end, double part) const {
  if (anneal_func_type_ == "linear") return (end - start) * part + start;
  return end + (start - end) / 2.0 * (std::cos(optim::kPi * part) + 1);
}

// Names are valid here: the constructor writes known ones, and phase_fields checks loaded ones.
const std::vector<double>& OneCycleLR::named(const std::string& name) const {
  if (name == "initial_lr") return initial_lrs();
  if (name == "max_lr") return max_lrs_;
  if (name == "min_lr") return min_lrs_;
  return name == "base_momentum" ? base_momentums_ : max_momentums_;
}

std::vector<double> OneCycleLR::get_lr(const std::vector<double>& current) const {
  // Python raises ValueError here.
  check_argument(last_epoch() <= total_steps_, "OneCycleLR: step {} of a schedule of {} steps; increase total_steps",
                 last_epoch(), total_steps_);
  const auto [phase, part] = place();
  auto rates = current;
  for (std::size_t group = 0; group < rates.size(); ++group) {
    rates[group] = between(named(phase.start_lr).at(group), named(phase.end_lr).at(group), part);
  }
  return rates;
}

// The same position in the phase as for the rates, with the phase's momentums.
std::vector<double> OneCycleLR::get_momentum() const {
  if (!cycle_momentum_) return {};
  const auto [phase, part] = place();
  auto momentum = base_momentums_;
  for (std::size_t group = 0; group < momentum.size(); ++group) {
    momentum[group] = between(named(phase.start_momentum).at(group), named(phase.end_momentum).at(group), part);
  }
  return momentum;
}

void OneCycleLR::state_fields(optim::StateFields& fields) {
  LRScheduler::state_fields(fields);
  fields("total_steps", total_steps_, optim::at_least(1));
  fields("_anneal_func_type", anneal_func_type_, optim::one_of({"cos", "linear"}));
  fields("cycle_momentum", cycle_momentum_, optim::unchanged_since_construction(cycle_momentum_));
  if (cycle_momentum_) fields("use_beta1", use_beta1_, optim::unchanged_since_construction(use_beta1_));
  fields.writes() ? write_phases(fields) : read_phases(fields);
}

// One function for writing and reading, so that both have the same keys.
void OneCycleLR::phase_fields(optim::StateFields& fields, Phase& phase) {
  const auto rates = optim::one_of({"initial_lr", "max_lr", "min_lr"}),
             momentums = optim::one_of({"base_momentum", "max_momentum"});
  fields("end_step", phase.end_step);
  fields("start_lr", phase.start_lr, rates);
  fields("end_lr", phase.end_lr, rates);
  fields("start_momentum", phase.start_momentum, momentums);
  fields("end_momentum", phase.end_momentum, momentums);
}

// The list has two or three phases, depending on three_phase, which the state itself does not contain.
void OneCycleLR::write_phases(optim::StateFields& fields) {
  Value::List list;
  for (auto& phase : phases_) {
    Value::Dict written;
    optim::StateFields of_phase(written);
    phase_fields(of_phase, phase);
    if (&phase == &phases_.back())
      written["end_step"] = static_cast<std::int64_t>(phase.end_step);  // an int in Python's state
    list.emplace_back(std::move(written));
  }
  fields.write("_schedule_phases", std::move(list));
}

void OneCycleLR::read_phases(optim::StateFields& fields) {
  const auto* value = fields.find("_schedule_phases");
  if (value == nullptr) return;
  if (!value->is<Value::List>() || value->as<Value::List>().empty()) {
    fields.problem("_schedule_phases",
                   "expected a list of dicts, got " + (value->is<Value::List>() ? "an empty one" : value->type_name()));
    return;
  }
  // Shared with the deferred change, since phases are assigned only after all entries have been checked.
  const auto loaded = std::make_shared<std::vector<Phase>>(value->as<Value::List>().size());
  for (std::size_t index = 0; index < loaded->size(); ++index) {
    fields.part(value->as<Value::List>()[index], fmt::format("_schedule_phases[{}].", index),
                [&](optim::StateFields& of_phase) { phase_fields(of_phase, (*loaded)[index]); });
  }
  fields.change([this, loaded] { phases_ = *loaded; });
}

}  // namespace accel
