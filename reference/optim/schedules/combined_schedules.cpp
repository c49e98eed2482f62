#include "reference/optim/schedules/combined_schedules.hpp"

#include <fmt/ranges.h>
#include <torch/optim/optimizer.h>

#include <algorithm>

#include "reference/core/errors.hpp"
#include "reference/optim/schedules/reduce_lr_on_plateau.hpp"
#include "reference/optim/schedules/schedule_state.hpp"

namespace accel {

CombinedSchedule::CombinedSchedule(const ScheduledOptimizer& optimizer, const std::vector<ScheduleFactory>& schedulers)
    : LRScheduler(optimizer) {
  check_argument(!schedulers.empty(), "schedulers: expected at least one, got none");
  ScheduledOptimizer start = optimizer;
  // As in Python, the parts are new schedules; `last_epoch` of the combined one is applied by SequentialLR.
  start.last_epoch = -1;
  for (const auto& make : schedulers) {
    check_argument(make != nullptr, "schedulers[{}]: expected a function that makes a schedule, got an empty one",
                   schedulers_.size());
    auto scheduler = make(start);
    check(scheduler.get());
    // Constructing a part has changed the optimizer's rates. Python's parts find the original ones in the groups'
    // initial_lr; LibTorch's groups cannot store it, so it is passed on here.
    start.initial_lrs = scheduler->initial_lrs();
    schedulers_.push_back(std::move(scheduler));
  }
  initial_lrs_ = *start.initial_lrs;
}

void CombinedSchedule::check(const LRScheduler* scheduler) const {
  const auto index = schedulers_.size();
  check_argument(scheduler != nullptr, "schedulers[{}]: expected a schedule, got none", index);
  check_argument(dynamic_cast<const ReduceLROnPlateau*>(scheduler) == nullptr,
                 "schedulers[{}]: ReduceLROnPlateau needs a metric and cannot be combined; step it separately", index);
  check_argument(&scheduler->optimizer() == &optimizer(),
                 "schedulers[{}]: the schedule belongs to another optimizer; expected the combined schedule's", index);
}

// Each part has stepped when it was constructed. Only the one that starts may have; the others start at their
// milestones.
void CombinedSchedule::initial_step_of(std::size_t index) {
  undo_initial_step();
  schedulers_[index]->initial_step();
}

void CombinedSchedule::update_last_lr() { last_lr_ = current_lr(); }

// If several parts write the same entry, the last one's counts, as in Python.
LRScheduler::GroupEntries CombinedSchedule::group_entries() const {
  auto entries = LRScheduler::group_entries();
  for (const auto& scheduler : schedulers_) {
    for (auto& [key, values] : scheduler->group_entries()) entries[key] = std::move(values);
  }
  return entries;
}

void CombinedSchedule::restart(LRScheduler& scheduler) { scheduler.restart(); }

void CombinedSchedule::undo_initial_step() {
  for (auto& scheduler : schedulers_) scheduler->undo_initial_step();
}

// Never called: get_lr is only used for a part that starts at a milestone, and SequentialLR rejects combined schedules
// there.
std::vector<double> CombinedSchedule::get_lr(const std::vector<double>& /*current*/) const {
  ensure(false, "get_lr: a combined schedule has no rates of its own");
  return {};
}

void CombinedSchedule::state_fields(optim::StateFields& fields) {
  last_lr_field(fields);
  if (step_count_) {  // set if this schedule is itself the first part of another one
    fields("_step_count", *step_count_);
    fields.constant("_is_initial", false);
  }
  read_schedulers(fields);
}

// Reads the parts with a shared list of changes, so that a problem in any part leaves all parts unchanged.
void CombinedSchedule::read_schedulers(optim::StateFields& fields) {
  if (fields.writes()) {
    Value::List states;
    for (const auto& scheduler : schedulers_) states.push_back(scheduler->state_dict());
    fields.write("_schedulers", std::move(states));
    return;
  }
  const auto* states = fields.find("_schedulers");
  if (states == nullptr) return;
  if (!states->is<Value::List>() || states->as<Value::List>().size() != schedulers_.size()) {
    fields.problem("_schedulers", fmt::format("expected a list of {} states", schedulers_.size()));
    return;
  }
  for (std::size_t index = 0; index < schedulers_.size(); ++index) {
    auto& scheduler = *schedulers_[index];
    fields.part(states->as<Value::List>()[index], fmt::format("_schedulers[{}].", index),
                [&](optim::StateFields& part) { scheduler.state_fields(part); });
    fields.change([&scheduler] { scheduler.loaded(); });
  }
}

SequentialLR::SequentialLR(const ScheduledOptimizer& optimizer, const std::vector<ScheduleFactory>& schedulers,
                           std::vector<int> milestones)
    : CombinedSchedule(optimizer, schedulers), milestones_(std::move(milestones)) {
  check_argument(milestones_.size() + 1 == schedulers.size(),
                 "SequentialLR: milestones: expected {}, one fewer than schedules, got {}", schedulers.size() - 1,
                 milestones_.size());
  check_argument(std::is_sorted(milestones_.begin(), milestones_.end()),
                 "SequentialLR: milestones: expected numbers in ascending order, got {}", fmt::join(milestones_, ", "));
  for (std::size_t index = 1; index < schedulers.size(); ++index) {
    check_argument(dynamic_cast<CombinedSchedule*>(this->schedulers()[index].get()) == nullptr,
                   "SequentialLR: schedulers[{}]: a combined schedule cannot start at a milestone; put it first, or "
                   "list its parts here",
                   index);
  }
  set_last_epoch(optimizer.last_epoch + 1);
  // Undoes the changes that constructing the parts made to the rates, then starts the first part alone, as Python does
  // in its constructor. Unlike there, with milestones at 0 the part after them is the one that starts.
  auto& groups = this->optimizer().param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(initial_lrs()[group]);
  initial_step_of(last_epoch() == 0 ? next_milestone() - milestones_.begin() : 0);
  update_last_lr();
}

// bisect_right in Python: at a milestone the next schedule is already active.
std::vector<int>::const_iterator SequentialLR::next_milestone() const {
  return std::upper_bound(milestones_.begin(), milestones_.end(), last_epoch());
}

void SequentialLR::step() {
  set_last_epoch(last_epoch() + 1);
  const auto next = next_milestone();
  auto& scheduler = *schedulers()[next - milestones_.begin()];
  if (next != milestones_.begin() && *(next - 1) == last_epoch()) {
    // Python calls step(0) on the new part, which uses its closed form where there is one.
    restart(scheduler);
  } else {
    scheduler.step();
  }
  update_last_lr();
}

void SequentialLR::state_fields(optim::StateFields& fields) {
  fields("_milestones", milestones_,
         {[size = milestones_.size()](const auto& milestones) {
            return milestones.size() == size && std::is_sorted(milestones.begin(), milestones.end());
          },
          fmt::format("a list of {} in rising order", milestones_.size())});
  last_epoch_field(fields);
  CombinedSchedule::state_fields(fields);
}

ChainedScheduler::ChainedScheduler(const ScheduledOptimizer& optimizer, const std::vector<ScheduleFactory>& schedulers)
    : CombinedSchedule(optimizer, schedulers) {
  update_last_lr();
}

// Each part multiplies the rates that the previous ones have left.
void ChainedScheduler::step() {
  for (const auto& scheduler : schedulers()) scheduler->step();
  update_last_lr();
}

}  // namespace accel
