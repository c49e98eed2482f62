// How a world fails, by itself or by an injected fault.
#include <algorithm>
#include <iostream>

#include "sim/engine/world.hpp"

namespace accel::sim {

void World::throw_if_failed() {
  if (!has_failed_) return;
  const MutexLock lock(mutex_);
  std::rethrow_exception(failure_);
}

std::vector<std::shared_ptr<Group>> World::all_groups() {
  const MutexLock lock(mutex_);
  std::vector<std::shared_ptr<Group>> groups;
  for (const auto& [name, group] : groups_) groups.push_back(group);
  return groups;
}

std::vector<std::shared_ptr<Meeting>> World::open_meetings() {
  std::vector<std::shared_ptr<Meeting>> meetings;
  for (const auto& group : all_groups()) {
    const MutexLock lock(group->mutex);
    for (const auto& [sequence, meeting] : group->open) meetings.push_back(meeting);
    for (const auto& posted : group->receives) meetings.push_back(posted.meeting);
  }
  const MutexLock lock(mutex_);
  meetings.insert(meetings.end(), hangs_.begin(), hangs_.end());
  return meetings;
}

void World::fail(std::exception_ptr error) {
  {
    const MutexLock lock(mutex_);
    if (failure_) return;
    failure_ = error;
    try {
      std::rethrow_exception(error);
    } catch (const DiagnosedError& diagnosed) {
      diagnosis_ = diagnosed.diagnosis();
    } catch (...) {
    }
  }
  has_failed_ = true;
  log_event("fail", -1);
  for (const auto& meeting : open_meetings()) end(*meeting, error);
}

std::exception_ptr World::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

void World::on_quiescence() {
  if (blocked_ranks().empty()) return;
  num_active_.fetch_add(1);  // who resolves it: ending one meeting after the other is no quiescence in between
  if (!options_.faults || !options_.faults->on_quiescence(*this))
    fail(std::make_exception_ptr(DiagnosedError(diagnose_hang())));
  if (num_active_.fetch_sub(1) == 1) on_quiescence();
}

void World::hang(int rank) {
  auto meeting = std::make_shared<Meeting>();
  {
    const MutexLock lock(mutex_);
    hangs_.push_back(meeting);
    hanging_.push_back(rank);
  }
  throw_if_failed();
  block(rank, *meeting);
  std::rethrow_exception(meeting->error(rank));
}

std::vector<int> World::hanging() {
  const MutexLock lock(mutex_);
  return hanging_;
}

void World::disconnect(const std::vector<int>& ranks, const std::function<std::exception_ptr(int)>& error) {
  for (const auto& group : all_groups()) {
    if (std::none_of(ranks.begin(), ranks.end(), [&](int rank) { return group->group_rank_of(rank) >= 0; })) continue;
    std::vector<std::shared_ptr<Meeting>> meetings;
    {
      const MutexLock lock(group->mutex);
      if (group->is_disconnected) continue;
      group->disconnected = error;
      group->is_disconnected = true;
      for (const auto& [sequence, meeting] : group->open) meetings.push_back(meeting);
      for (const auto& posted : group->receives) meetings.push_back(posted.meeting);
    }
    for (const auto& meeting : meetings) end(*meeting, nullptr, error);
  }
}

void World::time_out(double seconds, const std::function<std::exception_ptr(int)>& error) {
  auto diagnosis = diagnose_hang();
  {
    const MutexLock lock(mutex_);
    if (!diagnosis_) diagnosis_ = std::move(diagnosis);
  }
  for (const auto& group : all_groups()) {
    const MutexLock lock(group->mutex);
    if (group->is_disconnected) continue;
    group->disconnected = error;
    group->is_disconnected = true;
  }
  for (auto& rank : ranks_) {
    if (is_virtual()) rank.times.now += seconds;
  }
  for (const auto& meeting : open_meetings()) end(*meeting, nullptr, error);
}

void World::note(FaultStrike strike) {
  if (options_.logs_events)
    log_.append({.what = "fault", .rank = strike.ranks.empty() ? -1 : strike.ranks.front(), .text = strike.text});
  const MutexLock lock(mutex_);
  strikes_.push_back(std::move(strike));
}

void World::blame(const std::string& text) {
  const MutexLock lock(mutex_);
  for (auto& strike : strikes_) strike.may_stop = strike.may_stop || strike.text == text;
}

// Whether a rank's error may be what a fault led to: its peers see a process that ends, each by itself.
bool World::may_be_faults_work() {
  const auto of_strikes = strikes();
  if (std::any_of(of_strikes.begin(), of_strikes.end(), [](const auto& strike) { return strike.may_stop; }))
    return true;
  const auto groups = all_groups();
  return std::any_of(groups.begin(), groups.end(), [](const auto& group) { return group->is_disconnected.load(); });
}

std::vector<FaultStrike> World::strikes() {
  const MutexLock lock(mutex_);
  return strikes_;
}

void World::warn(std::string finding) {
  constexpr std::size_t kMost = 100;
  const MutexLock lock(mutex_);
  if (findings_.size() < kMost && std::find(findings_.begin(), findings_.end(), finding) == findings_.end())
    findings_.push_back(std::move(finding));
}

std::vector<std::string> World::findings() {
  const MutexLock lock(mutex_);
  auto sorted = findings_;
  std::sort(sorted.begin(), sorted.end());  // not in the order of threads
  return sorted;
}

void World::check_deadlines() {
  if (has_failed_) return;
  const auto now = std::chrono::steady_clock::now();
  std::shared_ptr<Meeting> late;
  for (const auto& meeting : open_meetings()) {
    if (meeting->group_ == nullptr || meeting->deadline_.load() >= now || meeting->any_call() == nullptr) continue;
    if (!late || std::any_of(ranks_.begin(), ranks_.end(), [&](auto& rank) {
          const MutexLock lock(rank.mutex);
          return rank.blocked_on == meeting.get();
        })) {
      late = meeting;
    }
  }
  if (late && !late->has_ended()) {
    fail(std::make_exception_ptr(DiagnosedError(diagnose_timeout(*late))));
  } else if (const int rank = rank_of_endless_turn(); rank >= 0) {
    fail(std::make_exception_ptr(DiagnosedError(diagnose_endless_turn(rank))));
  } else {
    return;
  }
  if (baton_) baton_->abandon();  // who holds it may never come back
}

void World::tell_stuck(const RunError& error) const {
  if (options_.on_stuck) return options_.on_stuck(error);
  std::cerr << "the simulation waits for ranks that do not come back:\n" << error.what() << std::endl;
}

// -1: none. A rank that keeps nobody waiting may run as long as it likes.
int World::rank_of_endless_turn() {
  if (!baton_) return -1;
  const auto holder = baton_->holder();
  if (holder.rank < 0 || std::chrono::steady_clock::now() - holder.since < options_.timeout) return -1;
  for (int rank = 0; rank < num_ranks(); ++rank) {
    const MutexLock lock(ranks_[rank].mutex);
    if (rank != holder.rank && !ranks_[rank].left) return holder.rank;
  }
  return -1;
}

// The strike to which a failure is put down: the last that may stop a run.
std::optional<Diagnosis> World::diagnosis() {
  const MutexLock lock(mutex_);
  const auto strike = std::find_if(strikes_.rbegin(), strikes_.rend(), [](const auto& one) { return one.may_stop; });
  if (strike == strikes_.rend()) return diagnosis_;
  auto diagnosis = diagnosis_.value_or(Diagnosis{});
  diagnosis.kind = Diagnosis::Kind::kFault;
  diagnosis.fault = strike->name;
  diagnosis.ranks = strike->ranks;
  if (diagnosis.op.empty() && strike->call) name_call(diagnosis, *strike->call, strike->group, strike->sequence);
  diagnosis.text =
      fmt::format("injected fault: {}{}{}", strike->text, diagnosis.text.empty() ? "" : "\n", diagnosis.text);
  return diagnosis;
}

}  // namespace accel::sim
