#include "reference/optim/schedules/lr_scheduler.hpp"

#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/schedule_state.hpp"
#include "reference/optim/state_dict/param_group_options.hpp"

// The base class follows Python's LRScheduler call by call, since step counts, epochs and initial rates end up in state
// dicts that Python must be able to load, and the other way round.
namespace accel {
namespace {

constexpr auto kInitialLr = "initial_lr";

// The initial rates that groups store from an earlier schedule or a state dict. For a group without one, its current
// rate is the initial one, unless the schedule resumes (`is_begun`): then the current rate has already been scheduled,
// and the result is nullopt.
std::optional<std::vector<double>> kept_initial_lrs(const torch::optim::Optimizer& optimizer, bool is_begun) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) {
    const auto* options = dynamic_cast<const optim::ParamGroupOptions*>(&group.options());
    const auto kept = options == nullptr ? Value::Dict::const_iterator() : options->extras().find(kInitialLr);
    if (options == nullptr || kept == options->extras().end()) {
      if (is_begun) return std::nullopt;
      rates.push_back(group.options().get_lr());
    } else if (kept->second.is<std::int64_t>()) {
      rates.push_back(static_cast<double>(kept->second.as<std::int64_t>()));
    } else {
      rates.push_back(kept->second.as<double>());
    }
  }
  return rates;
}

}  // namespace

std::vector<double> PerGroup::of(const torch::optim::Optimizer& optimizer, const char* name) const {
  const auto num_groups = optimizer.param_groups().size();
  if (for_all_) return std::vector<double>(num_groups, values_.front());
  check_argument(values_.size() == num_groups,
                 "{}: got {} values for {} parameter groups; expected one number, or a list with one per group", name,
                 values_.size(), num_groups);
  return values_;
}

LRScheduler::LRScheduler(ScheduledOptimizer optimizer)
    : optimizer_(optimizer.optimizer), last_epoch_(optimizer.last_epoch) {
  // Explicit initial rates take precedence over those in the groups.
  if (!optimizer.initial_lrs)
    optimizer.initial_lrs = kept_initial_lrs(*optimizer_, /*is_begun=*/optimizer.last_epoch != -1);
  const auto num_groups = optimizer_->param_groups().size();
  const auto num_rates = optimizer.initial_lrs ? optimizer.initial_lrs->size() : num_groups;
  check_argument(num_rates == num_groups, "initial_lrs: got {} values for {} parameter groups; expected one per group",
                 num_rates, num_groups);
  check_argument(optimizer.last_epoch >= -1, "last_epoch: expected -1 or more, got {}", optimizer.last_epoch);
  // Python raises KeyError here: the current rate does not determine the initial one.
  check_argument(optimizer.last_epoch == -1 || optimizer.initial_lrs,
                 "last_epoch: {} requires initial_lrs, the rates with which the schedule started",
                 optimizer.last_epoch);
  initial_lrs_ = optimizer.initial_lrs ? std::move(*optimizer.initial_lrs) : current_lr();
  base_lrs_ = initial_lrs_;
  last_lr_ = current_lr();
}

std::vector<double> LRScheduler::current_lr() const {
  std::vector<double> rates;
  // Read from the optimizer every time: the user or another schedule may have changed the rates.
  for (const auto& group : std::as_const(*optimizer_).param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// As Python's _initial_step: it is an ordinary step, from epoch -1 to 0, which some schedules recognize by
// is_initial().
void LRScheduler::initial_step() {
  keep_in_groups(kInitialLr, initial_lrs_);
  step_count_ = 0;
  is_initial_ = true;
  step();
  is_initial_ = false;
}

void LRScheduler::step() {
  advance_step_count();
  update_lr(last_epoch_ + 1);
}

void LRScheduler::step(double /*metric*/) {
  throw ArgumentError(
      "step: this schedule uses no metric and no fractional epochs; call step(), or use ReduceLROnPlateau, GreedyLR "
      "or CosineAnnealingWarmRestarts");
}

// Also kept in this object, because LibTorch's own groups have no place for extra entries.
void LRScheduler::keep_in_groups(const char* name, const std::vector<double>& values) {
  group_entries_[name] = values;
  auto& groups = optimizer_->param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) {
    if (auto* options = dynamic_cast<optim::ParamGroupOptions*>(&groups[group].options()))
      options->extras()[name] = values[group];
  }
}

void LRScheduler::update_lr(int epoch) {
  last_epoch_ = epoch;
  set_rates(get_lr(current_lr()));
}

// Python's deprecated step(0): absolute epoch, closed form.
void LRScheduler::restart() {
  last_epoch_ = 0;
  set_rates(get_closed_form_lr(current_lr()));
}

void LRScheduler::set_rates(const std::vector<double>& rates) {
  auto& groups = optimizer_->param_groups();
  check_state(rates.size() == groups.size(),
              "the schedule has {} rates for {} parameter groups; add all groups before creating it", rates.size(),
              groups.size());
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(rates[group]);
  const auto momentum = get_momentum();
  for (std::size_t group = 0; group < momentum.size(); ++group)
    optim::set_momentum(groups[group].options(), momentum[group]);
  last_lr_ = current_lr();
}

Value LRScheduler::state_dict() const {
  Value::Dict state;
  optim::StateFields fields(state);
  const_cast<LRScheduler*>(this)->state_fields(fields);  // fields in write mode change nothing
  return state;
}

void LRScheduler::load_state_dict(const Value& state) {
  optim::StateFields fields(state);
  state_fields(fields);
  // Nothing has changed before this call: state_fields only collects assignments.
  fields.apply("this schedule");
  loaded();
}

void LRScheduler::state_fields(optim::StateFields& fields) {
  fields("base_lrs", base_lrs_, one_per_group());
  last_epoch_field(fields);
  if (step_count_) fields("_step_count", *step_count_);
  last_lr_field(fields);
  fields.constant("_is_initial", false);
  fields.constant("_get_lr_called_within_step", false);
}

void LRScheduler::last_epoch_field(optim::StateFields& fields) { fields("last_epoch", last_epoch_); }
void LRScheduler::last_lr_field(optim::StateFields& fields) { fields("_last_lr", last_lr_, one_per_group()); }

optim::Rule<std::vector<double>> LRScheduler::one_per_group() const {
  const auto num_groups = optimizer_->param_groups().size(),
             num_at_first = initial_lrs_.size();  // groups may have been added since
  return {[=](const auto& values) { return values.size() == num_groups || values.size() == num_at_first; },
          fmt::format("a list of {}, one per parameter group", num_groups)};
}

}  // namespace accel
