#include "reference/recorder/job_watch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "reference/diagnosis/diagnose.hpp"
#include "reference/recorder/ending.hpp"
#include "reference/recorder/slowest_rank.hpp"

namespace accel::recorder {
namespace {

// Ranks that seem to wait for each other must do so for this long: a thread that has not called anything yet may come.
constexpr auto kCertainAfter = std::chrono::milliseconds(1000);
constexpr auto kLookInterval = std::chrono::milliseconds(500);

constexpr const char* kEveryRank = "hang: every rank is blocked or has ended; none can continue";

std::string headline_of(const JobView& view) {
  if (view.elsewhere.empty()) return kEveryRank;
  return fmt::format("hang: {} can never continue", describe_ranks(view.stuck));
}

// A rank that has failed on its own is known to whoever has started it.
std::optional<Diagnosis> ending_without_culprit(const JobRecord& record) {
  auto ending = ending_of(record);
  return ending && ending->kind != Diagnosis::Kind::kRankFailure ? ending : std::nullopt;
}

}  // namespace

Diagnosis diagnose_stuck(const JobView& view) { return diagnose_hang(view.job, headline_of(view)); }

Diagnosis diagnose_waiting(const JobView& view, std::chrono::milliseconds idle) {
  return diagnose_hang(view.job,
                       fmt::format("{} {} for {} s", describe_ranks(view.waiting),
                                   view.waiting.size() == 1 ? "has waited" : "have waited", idle.count() / 1000));
}

JobWatch::JobWatch(const WatchOptions& options, std::shared_ptr<JobRecord> record)
    : options_(options), record_(std::move(record)), reader_(record_), next_suspicion_(options.hang_after) {}

void JobWatch::begin_attempt() {
  record_->clear();
  progress_ = 0;
  changed_at_ = Clock::now();
  next_suspicion_ = options_.hang_after;
}

std::optional<Hang> JobWatch::look(const std::function<Ends()>& ends) {
  if (auto ending = ending_without_culprit(*record_)) return Hang{std::move(*ending)};
  if (!record_->has_all_ranks()) return std::nullopt;
  if (record_->has_verdict()) return Hang{await_difference(record_)};
  const auto now = Clock::now();
  if (const auto progress = progress_of(*record_); progress != progress_) {
    progress_ = progress;
    changed_at_ = now;
    next_suspicion_ = options_.hang_after;
    return std::nullopt;
  }
  const auto idle = std::chrono::duration_cast<std::chrono::milliseconds>(now - changed_at_);
  if (idle < kCertainAfter || now - looked_at_ < kLookInterval) return std::nullopt;
  looked_at_ = now;
  auto view = reader_.view(ends());
  // The ranks may have moved while they were read one after the other.
  if (view.progress != progress_ || progress_of(*record_) != progress_) return std::nullopt;
  if (!view.stuck.empty()) return Hang{diagnose_stuck(view)};
  if (idle < next_suspicion_ || view.job.open_calls.empty()) return std::nullopt;
  next_suspicion_ *= 2;
  add_process_states(*record_, view);
  return Hang{diagnose_waiting(view, idle), /*is_suspected=*/true, options_.stops_on_suspicion};
}

std::string JobWatch::whereabouts(const Ends& ends) const {
  auto view = reader_.view(ends);
  add_process_states(*record_, view);
  const auto slowest = slowest_rank(*record_);
  return describe(view.job) + (slowest ? "\n" + describe(*slowest) : "");
}

// A rank that ended in a wait has failed because of another one: one that has ended, or one that has not come in time.
Explanation JobWatch::explain(const Ends& ends, int first_failed) const {
  if (const auto ending = ending_without_culprit(*record_)) return {.diagnosis = ending};
  if (record_->has_verdict()) return {.diagnosis = await_difference(record_)};
  Explanation explanation;
  auto view = reader_.view(ends);
  std::optional<int> other_culprit;
  bool has_left = false;
  for (std::size_t local = 0; local < ends.size(); ++local) {
    const int rank = record_->first_rank() + static_cast<int>(local);
    if (!view.job.ranks[rank].waits.empty()) {
      explanation.released.push_back(rank);
    } else if (ends[local].has_ended) {
      has_left = has_left || ends[local].detail.empty();
      if (ends[local].detail.empty()) continue;
      (rank == first_failed ? explanation.culprit : other_culprit) = rank;
    }
  }
  if (!explanation.culprit) explanation.culprit = other_culprit;
  if (explanation.culprit || view.job.open_calls.empty()) return explanation;
  // Whether a rank of another machine has ended is known there.
  const auto& members = view.job.open_calls.front().members;
  const bool is_local = std::all_of(members.begin(), members.end(), [&](int rank) { return record_->is_local(rank); });
  if (!has_left && !is_local) return explanation;
  auto headline = headline_of(view);
  if (!has_left) {
    headline = message_of(explanation.released.empty() ? first_failed : explanation.released.front());
    headline = headline.substr(0, headline.find('\n'));
    if (headline.empty()) headline = "ranks have ended while they waited";
    add_process_states(*record_, view);
  }
  explanation.diagnosis = diagnose_hang(view.job, headline);
  return explanation;
}

// Ranks print only errors of their own under a launcher that watches them.
std::string JobWatch::message_of(int rank) const {
  if (!record_->is_watched() || !record_->is_local(rank)) return "";
  const auto& own = record_->rank(rank);
  return own.end.load() == RankEnd::kConsequence ? own.message : "";
}

}  // namespace accel::recorder
