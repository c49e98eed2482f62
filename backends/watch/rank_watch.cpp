#include "backends/watch/rank_watch.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <iostream>
#include <mutex>

#include "reference/config/environment.hpp"
#include "reference/core/system/print_warning.hpp"
#include "reference/recorder/ending.hpp"

namespace accel::recorder {
namespace {

constexpr auto kInterval = std::chrono::milliseconds(200);
constexpr auto kIntervalAtEnd = std::chrono::milliseconds(20);
constexpr auto kGrace = std::chrono::seconds(2);         // for ranks that the ending releases
constexpr auto kWaitForHosts = std::chrono::seconds(1);  // until all have read an ending; below the grace
constexpr auto kLinger = std::chrono::seconds(5);

// Returns whether the watch was stopped meanwhile.
bool sleep_for(std::chrono::milliseconds time, const std::stop_token& stop) {
  std::mutex mutex;
  std::condition_variable_any stopped;
  std::unique_lock lock(mutex);
  return stopped.wait_for(lock, stop, time, [&] { return stop.stop_requested(); });
}

Diagnosis failure_of(int rank, const char* message) {
  return {.kind = Diagnosis::Kind::kRankFailure,
          .ranks = {rank},
          .text = fmt::format("rank {} has failed: {}", rank, message)};
}

// The program hangs in a call that cannot be released.
[[noreturn]] void end_process(const Diagnosis& diagnosis, const JobRecord& record) {
  if (claim_to_print_ending(record)) std::cerr << fmt::format("error: {}\n", diagnosis.text) << std::flush;
  std::_Exit(diagnosis.kind == Diagnosis::Kind::kRankFailure ? 1 : kExitCodeOfDiagnosis);
}

}  // namespace

WatchOptions watch_options() {
  WatchOptions options;
  if (const auto text = environment("ACCEL_HANG_SECONDS")) {
    double seconds = 0;
    const auto [end, problem] = std::from_chars(text->data(), text->data() + text->size(), seconds);
    check_config(problem == std::errc() && end == text->data() + text->size() && seconds > 0 && seconds < 1e9,
                 "ACCEL_HANG_SECONDS: '{}'; expected a number above 0", *text);
    options.hang_after = std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  const auto action = environment("ACCEL_ON_HANG").value_or("warn");
  check_config(action == "warn" || action == "stop", "ACCEL_ON_HANG: '{}'; expected warn or stop", action);
  options.stops_on_suspicion = action == "stop";
  return options;
}

RankWatch::RankWatch(const WatchOptions& options, std::shared_ptr<JobRecord> record, int rank, const JobStore& store)
    : record_(std::move(record)),
      rank_(rank),
      store_ends_with_rank_0_(store.ends_with_rank_0()),
      exchange_(record_->has_all_ranks() ? nullptr : std::make_unique<HostExchange>(options, store.clone(), record_)),
      can_exchange_(exchange_ != nullptr),
      watch_(options, record_),
      thread_([this](auto stop) { run(stop); }) {}

// An error here must not end a rank that trains.
void RankWatch::run(const std::stop_token& stop) {
  try {
    const auto& end = record_->rank(rank_).end;
    while (!sleep_for(end == RankEnd::kNone ? kInterval : kIntervalAtEnd, stop)) {
      if (const auto hang = look()) act_on(*hang);
      if (const auto ending = ending_of(*record_)) {
        if (speaks()) publish(*ending);
        if (!sleep_for(kGrace, stop)) end_process(*ending, *record_);
        return;
      }
    }
  } catch (const std::exception& error) {
    print_warning(fmt::format("rank {} looks for hangs no longer: {}", rank_, error.what()));
  }
}

// All ranks look at their host, so that the next one can speak if the first ends.
std::optional<Hang> RankWatch::look() {
  auto hang = watch_.look([&] { return ends_of_processes(*record_); });
  if (!speaks()) return std::nullopt;
  if (can_exchange_ && is_store_gone()) can_exchange_ = false;
  return !hang && can_exchange_ ? look_at_hosts() : hang;
}

// The store is gone when the rank that serves it has ended.
std::optional<Hang> RankWatch::look_at_hosts() {
  try {
    return exchange_->exchange();
  } catch (const std::exception&) {
    can_exchange_ = false;
    return std::nullopt;
  }
}

void RankWatch::act_on(const Hang& hang) {
  if (hang.ends_job)
    publish_ending(*record_, hang.diagnosis);
  else
    print_warning(hang.diagnosis.text);
}

void RankWatch::publish(const Diagnosis& ending) {
  try {
    if (can_exchange_) exchange_->publish(ending);
  } catch (const std::exception&) {
    can_exchange_ = false;
  }
}

// The store is gone with rank 0, or with the launcher of its host, which ends when one of its ranks does. So the ranks
// of that host end after all hosts have read there why.
void RankWatch::fail(const char* message, bool is_own) {
  if (record_->rank(rank_).may_be_lost) return;
  if (is_own) {
    publish_ending(*record_, failure_of(rank_, message));
    publish(failure_of(rank_, message));
  }
  if (!can_exchange_ || !record_->is_local(0)) return;
  try {
    if (!is_own && !ending_of(*record_)) {
      if (rank_ == 0) close();
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + kWaitForHosts;
    while (!exchange_->do_all_know() && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(kIntervalAtEnd);
  } catch (const std::exception&) {
    can_exchange_ = false;
  }
}

void RankWatch::finish() {
  if (!can_exchange_) return;
  try {
    if (rank_ != 0 && !speaks()) return;
    const auto deadline = std::chrono::steady_clock::now() + kLinger;
    while (!exchange_->have_all_ended() && std::chrono::steady_clock::now() < deadline) {
      if (auto ending = ending_of(*record_)) throw DiagnosedError(std::move(*ending));
      std::this_thread::sleep_for(kIntervalAtEnd);
    }
    if (rank_ == 0 && !exchange_->have_all_ended()) close();
  } catch (const DiagnosedError&) {
    throw;
  } catch (const std::exception&) {
    can_exchange_ = false;
  }
}

// The other hosts notice before the store is gone.
void RankWatch::close() {
  exchange_->close();
  std::this_thread::sleep_for(2 * kInterval);
}

bool RankWatch::is_store_gone() const {
  return store_ends_with_rank_0_ && record_->is_local(0) && has_process_ended(*record_, 0);
}

// The first rank that lives; of those that have returned from their programs only if no other is left.
bool RankWatch::speaks() const {
  const bool has_ended = record_->rank(rank_).end.load() != RankEnd::kNone;
  for (const int rank : record_->local_ranks()) {
    const auto& other = record_->rank(rank);
    const bool goes_first = has_ended || rank < rank_;
    if (rank == rank_ || !goes_first || other.end.load() != RankEnd::kNone) continue;
    if (is_able_to_run(other.pid.load())) return false;
  }
  return true;
}

}  // namespace accel::recorder
