#include "reference/optim/schedules/combined_schedules.hpp"

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
  start.last_epoch = -1;
  for (const auto& make : schedulers) {
    check_argument(make != nullptr, "schedulers[{}]: expected a function that makes a schedule, got an empty one",
                   schedulers_.size());
    auto scheduler = make(start);
    check(scheduler.get());
    start.initial_lrs = scheduler->initial_lrs();
    schedulers_.push_back(std::move(scheduler));
  }
  initial_lrs_ = *start.initial_lrs;
}

void CombinedSchedule::check(const LRScheduler* scheduler) const {
  const auto index = schedulers_.size();
  check_argument(scheduler != nullptr, "schedulers[{}]: expected a schedule, got none", index);
  check_argument(dynamic_cast<const ReduceLROnPlateau*>(scheduler) == nullptr,
                 "schedulers[{}]: ReduceLROnPlateau is stepped with a metric; it cannot be a part", index);
  check_argument(&scheduler->optimizer() == &optimizer(), "schedulers[{}]: a schedule of another optimizer", index);
}

void CombinedSchedule::initial_step_of_first() {
  undo_initial_step();
  schedulers_.front()->initial_step();
}

void CombinedSchedule::update_last_lr() { last_lr_ = current_lr(); }

// The last one's, as in Python.
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

// Only a part that begins at a milestone is asked, and SequentialLR takes no combined schedule there.
std::vector<double> CombinedSchedule::get_lr(const std::vector<double>& /*current*/) const {
  ensure(false, "a combined schedule has no rates of its own");
  return {};
}

void CombinedSchedule::state_fields(optim::StateFields& fields) {
  last_lr_field(fields);
  if (step_count_) {  // a part that has begun
    fields("_step_count", *step_count_);
    fields.constant("_is_initial", false);
  }
  read_schedulers(fields);
}

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
                 "SequentialLR: milestones: expected {}, one less than schedules, got {}", schedulers.size() - 1,
                 milestones_.size());
  check_argument(std::is_sorted(milestones_.begin(), milestones_.end()),
                 "SequentialLR: milestones: expected them in rising order");
  for (std::size_t index = 1; index < schedulers.size(); ++index) {
    check_argument(dynamic_cast<CombinedSchedule*>(this->schedulers()[index].get()) == nullptr,
                   "SequentialLR: schedulers[{}]: a combined schedule cannot begin at a milestone; put it first, or "
                   "list its parts here",
                   index);
  }
  set_last_epoch(optimizer.last_epoch + 1);
  // Undoes what making the parts has done to the rates, then begins the first part alone.
  auto& groups = this->optimizer().param_groups();
  for (std::size_t group = 0; group < groups.size(); ++group) groups[group].options().set_lr(initial_lrs()[group]);
  initial_step_of_first();
  update_last_lr();
}

void SequentialLR::step() {
  set_last_epoch(last_epoch() + 1);
  const auto next = std::upper_bound(milestones_.begin(), milestones_.end(), last_epoch());
  auto& scheduler = *schedulers()[next - milestones_.begin()];
  if (next != milestones_.begin() && *(next - 1) == last_epoch()) {
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

void ChainedScheduler::step() {
  for (const auto& scheduler : schedulers()) scheduler->step();
  update_last_lr();
}

}  // namespace accel
