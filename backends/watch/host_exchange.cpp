// Keys of the store:
//   watch/host/R            number of ranks of the host whose first rank is R
//   watch/state/R           its state
//   watch/request           name of a request for the records of all ranks
//   watch/record/NAME/RANK  what a rank has recorded
//   watch/ending            why the job has to end
//   watch/informed/R        set once a host knows that
//   watch/ended             set once all ranks have returned from their programs, and their calls agreed
//   watch/closed            set before the store is gone while ranks continue
#include "backends/watch/host_exchange.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/diagnosis/diagnose.hpp"
#include "reference/diagnosis/diagnosis_json.hpp"
#include "reference/recorder/ending.hpp"

namespace accel::recorder {
namespace {

constexpr auto kCertainAfter = std::chrono::milliseconds(1000);  // as a watch of one host
constexpr auto kSilentAfter = std::chrono::seconds(3);
constexpr auto kWaitForCalls = std::chrono::milliseconds(1000);  // for ranks on their way to a call that differs
constexpr auto kAnswerLimit = std::chrono::seconds(5);

Diagnosis forgotten_difference(const std::string& group) {
  return {.kind = Diagnosis::Kind::kDesync,
          .group = group,
          .text = fmt::format(
              "group {}: the ranks' calls differ; the first difference is not among the last {} calls, which are kept",
              group, kCalls)};
}

}  // namespace

HostExchange::HostExchange(const WatchOptions& options, std::unique_ptr<JobStore> store,
                           std::shared_ptr<JobRecord> record)
    : options_(options), store_(std::move(store)), record_(std::move(record)), next_suspicion_(options.hang_after) {
  store_->set(fmt::format("watch/host/{}", record_->first_rank()), std::to_string(record_->num_local()));
}

std::optional<std::string> HostExchange::value_of(const std::string& key) const {
  if (!store_->has({key})) return std::nullopt;
  return store_->get(key);
}

// The ranks of a host are consecutive. False until all hosts have told.
bool HostExchange::find_hosts() {
  while (true) {
    const int next = hosts_.empty() ? 0 : hosts_.back().first_rank + hosts_.back().num_local;
    if (next >= record_->world_size()) return true;
    const auto num_local = value_of(fmt::format("watch/host/{}", next));
    if (!num_local) return false;
    hosts_.push_back({.first_rank = next, .num_local = std::stoi(*num_local)});
  }
}

std::optional<Hang> HostExchange::exchange() {
  if (store_->has({"watch/closed"})) throw CommError("the store is closed");
  tell_state();
  answer_request();
  if (const auto ending = value_of("watch/ending")) return Hang{diagnosis_of_json(*ending)};
  return find_hosts() && compares() ? compare() : std::nullopt;
}

void HostExchange::close() { store_->set("watch/closed", "yes"); }

void HostExchange::publish(const Diagnosis& ending) {
  if (!store_->has({"watch/ending"})) store_->set("watch/ending", diagnosis_json(ending));
  store_->set(fmt::format("watch/informed/{}", record_->first_rank()), "yes");
}

bool HostExchange::do_all_know() const {
  int first_rank = 0;
  while (first_rank < record_->world_size()) {
    const auto num_local = value_of(fmt::format("watch/host/{}", first_rank));
    if (!num_local || !store_->has({fmt::format("watch/informed/{}", first_rank)})) return false;
    first_rank += std::stoi(*num_local);
  }
  return true;
}

bool HostExchange::have_all_ended() const { return store_->has({"watch/ended"}); }

// A state of a host that makes no progress differs by its count from the last one, so that the host is not silent.
void HostExchange::tell_state() {
  const auto now = Clock::now();
  if (const auto progress = progress_of(*record_); progress != progress_) {
    progress_ = progress;
    changed_at_ = now;
  }
  const auto idle = std::chrono::duration_cast<milliseconds>(now - changed_at_);
  store_->set(fmt::format("watch/state/{}", record_->first_rank()),
              fmt::format("{} {}", ++count_, to_json(state_of_host(*record_, idle.count()))));
}

void HostExchange::read_state(Host& host) {
  auto text = value_of(fmt::format("watch/state/{}", host.first_rank));
  if (!text || *text == host.text) return;
  host.text = std::move(*text);
  host.state = host_state_of_json(std::string_view(host.text).substr(host.text.find(' ') + 1));
  host.changed_at = Clock::now();
}

void HostExchange::answer_request() {
  const auto request = value_of("watch/request");
  if (!request || *request == answered_) return;
  answered_ = *request;
  for (const int rank : record_->local_ranks())
    store_->set(fmt::format("watch/record/{}/{}", answered_, rank), snapshot_of(*record_, rank));
}

// The first host that is not silent. The others read the state of one host only.
bool HostExchange::compares() {
  for (auto& host : hosts_) {
    if (host.first_rank == record_->first_rank()) return true;
    read_state(host);
    if (host.state && Clock::now() - host.changed_at < kSilentAfter) return false;
  }
  return true;
}

std::optional<Hang> HostExchange::compare() {
  for (auto& host : hosts_) read_state(host);
  if (request_) return diagnose_records();
  std::vector<const HostState*> states;
  for (const auto& host : hosts_) states.push_back(host.state ? &*host.state : nullptr);
  if (auto group = differing_group(states)) {
    request_records({.differing_group = std::move(*group), .first_made_at = Clock::now()});
    return std::nullopt;
  }
  if (std::all_of(states.begin(), states.end(), [](auto* state) { return state != nullptr && state->has_ended; }))
    store_->set("watch/ended", "yes");
  const auto idle = idle_time();
  const bool waits =
      std::any_of(hosts_.begin(), hosts_.end(), [](auto& host) { return host.state && host.state->waits; });
  if (!idle || *idle < kCertainAfter || !waits) {
    next_suspicion_ = options_.hang_after;
    return std::nullopt;
  }
  if (stamp() != looked_at_ || *idle >= next_suspicion_) request_records({.idle = *idle});
  return std::nullopt;
}

void HostExchange::request_records(Request request) {
  looked_at_ = stamp();
  request.name = fmt::format("{}.{}", record_->first_rank(), count_);
  request.made_at = Clock::now();
  store_->set("watch/request", request.name);
  request_ = std::move(request);
}

std::optional<Hang> HostExchange::diagnose_records() {
  const auto all = take_records();
  if (!all) return std::nullopt;
  const auto request = *std::exchange(request_, std::nullopt);
  if (!request.differing_group.empty()) return diagnose_difference_in(all, request);
  if (stamp() != looked_at_) return std::nullopt;  // somebody has gone on meanwhile
  std::vector<ProcessEnd> ends;
  std::vector<std::string> process_states;
  for (const auto& host : hosts_) {
    if (host.state) {
      ends.insert(ends.end(), host.state->ends.begin(), host.state->ends.end());
      process_states.insert(process_states.end(), host.state->process_states.begin(), host.state->process_states.end());
    }
    ends.resize(host.first_rank + host.num_local);
    process_states.resize(host.first_rank + host.num_local);
  }
  auto view = JobReader(all).view(ends);
  if (!view.stuck.empty()) return Hang{diagnose_stuck(view)};
  if (request.idle < next_suspicion_ || view.job.open_calls.empty()) return std::nullopt;
  next_suspicion_ *= 2;
  for (const int rank : view.elsewhere) {
    auto& detail = view.job.ranks[rank].detail;
    detail += (detail.empty() ? "" : ", ") + process_states[rank];
  }
  return Hang{diagnose_waiting(view, request.idle), /*is_suspected=*/true, options_.stops_on_suspicion};
}

// Null until all hosts have answered. What one fails to send in time is taken as not recorded: its ranks are then not
// stuck.
std::shared_ptr<JobRecord> HostExchange::take_records() {
  std::vector<std::string> keys;
  for (int rank = 0; rank < record_->world_size(); ++rank)
    keys.push_back(fmt::format("watch/record/{}/{}", request_->name, rank));
  if (!store_->has(keys) && Clock::now() - request_->made_at < kAnswerLimit) return nullptr;
  auto all = JobRecord::create({.world_size = record_->world_size(), .num_local = record_->world_size()});
  all->is_elastic() = record_->is_elastic().load();
  for (int rank = 0; rank < record_->world_size(); ++rank) {
    if (const auto snapshot = value_of(keys[rank])) apply_snapshot(*snapshot, *all, rank);
    store_->erase(keys[rank]);
  }
  return all;
}

// Ranks on their way to the call may arrive soon.
std::optional<Hang> HostExchange::diagnose_difference_in(const std::shared_ptr<JobRecord>& all,
                                                         const Request& request) {
  if (!condemn_first_difference(*all, request.differing_group))
    return Hang{forgotten_difference(request.differing_group)};
  auto call = *JobReader(all).condemned_call();
  const bool is_whole = std::all_of(call.calls.begin(), call.calls.end(), [](auto& own) { return own.has_value(); });
  if (is_whole || Clock::now() - request.first_made_at > kWaitForCalls)
    return Hang{diagnose_condemned(*all, std::move(call))};
  request_records({.differing_group = request.differing_group, .first_made_at = request.first_made_at});
  return std::nullopt;
}

std::optional<std::chrono::milliseconds> HostExchange::idle_time() const {
  auto shortest = milliseconds::max();
  for (const auto& host : hosts_) {
    const auto silent = Clock::now() - host.changed_at;
    if (!host.state || (silent > kSilentAfter && !host.state->has_ended)) return std::nullopt;
    shortest = std::min(shortest, milliseconds(host.state->idle_ms) + std::chrono::duration_cast<milliseconds>(silent));
  }
  return shortest;
}

std::string HostExchange::stamp() const {
  std::string stamp;
  for (const auto& host : hosts_) {
    if (!host.state) continue;
    stamp += fmt::format("{}:", host.state->progress);
    for (const auto& end : host.state->ends) stamp += end.has_ended ? '1' : '0';
    stamp += ' ';
  }
  return stamp;
}

}  // namespace accel::recorder
