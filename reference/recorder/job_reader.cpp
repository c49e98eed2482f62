#include "reference/recorder/job_reader.hpp"

#include <fcntl.h>
#include <torch/headeronly/core/ScalarType.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "reference/comm/dtypes.hpp"
#include "reference/comm/reduction_name.hpp"
#include "reference/core/system/task_stat.hpp"
#include "reference/diagnosis/diagnose.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/recorder/call_facts.hpp"
#include "reference/recorder/exchange.hpp"

namespace accel::recorder {
namespace {

std::string text_at(const RankRecord& rank, std::uint16_t index) {
  return index == 0 || index > kTexts ? "" : std::string(rank.texts[index - 1]);
}

// A RecordedCall as its rank wrote it, without atomics.
struct CopiedCall {
  std::uint64_t sequence = 0;
  std::uint32_t line = 0;
  std::uint16_t group = 0, file = 0, library_call = 0;
  std::int32_t peer = -1;
  CallFacts facts;
};

// Absent if the rank has overwritten the call, also while it was copied.
std::optional<CopiedCall> copy_of(const RankRecord& rank, std::uint64_t position) {
  const auto& call = rank.calls[position % kCalls];
  if (position == 0 || call.position.load(std::memory_order_acquire) != position) return std::nullopt;
  CopiedCall copy{call.sequence, call.line, call.group, call.file, call.library_call, call.peer, call.facts};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (call.position.load(std::memory_order_relaxed) != position) return std::nullopt;
  return copy;
}

std::vector<std::int64_t> numbers_of(const CallFacts& facts, std::size_t begin, std::size_t count) {
  if (begin + count > facts.num_numbers || facts.num_numbers > kNumbers) return {};
  return {facts.numbers + begin, facts.numbers + begin + count};
}

SourceLine where_of(const RankRecord& rank, const CopiedCall& call) {
  return call.line == 0 ? SourceLine() : SourceLine(kept(text_at(rank, call.file)), call.line);
}

void add_shapes(Call& call, const CallFacts& facts) {
  for (std::size_t at = 0; at < facts.num_numbers;) {
    const auto dims = static_cast<std::size_t>(facts.numbers[at] % CallFacts::kHasStrides);
    const bool has_strides = facts.numbers[at] >= CallFacts::kHasStrides;
    call.shapes.push_back(numbers_of(facts, ++at, dims));
    at += dims;
    if (has_strides) call.strides.push_back(numbers_of(facts, at, dims));
    at += has_strides ? dims : 0;
  }
}

Call call_of(const RankRecord& rank, const CopiedCall& copied) {
  const auto& facts = copied.facts;
  Call call{.op = facts.op,
            .reduce_op = facts.reduce_op == CallFacts::kNoReduction ? "" : reduction_name(facts.reduce_op),
            .dtype = facts.dtype < 0 ? "" : dtype_name(static_cast<c10::ScalarType>(facts.dtype)),
            .sparse_dim = facts.sparse_dim,
            .root = facts.root,
            .bytes = facts.bytes,
            .is_on_gpu = facts.is_on_gpu,
            .library_call = text_at(rank, copied.library_call),
            .where = where_of(rank, copied)};
  if (have_equal_shapes(facts.op)) add_shapes(call, facts);
  return call;
}

CallPlace place_of(const RankRecord& rank, const CopiedCall& call) {
  const auto& group = rank.groups[call.group];
  const int peer = !is_message(call.facts.op) ? kNoPeer : call.peer < 0 ? kAnyPeer : group.members[call.peer];
  return {call.facts.op, group.name, static_cast<std::int64_t>(call.sequence), peer, where_of(rank, call)};
}

// The letter of proc(5); ' ' if the process has ended, even before its parent notices.
char state_letter(pid_t pid) {
  const auto stat = task_stat(fmt::format("/proc/{}", pid));
  const auto letter = stat.empty() ? ' ' : stat.front();
  return letter == 'Z' || letter == 'X' ? ' ' : letter;
}

// What the kernel says of a process that waits for no other rank; "" if it is gone.
std::string state_of(pid_t pid) {
  switch (state_letter(pid)) {
    case 'R': return "it computes";
    case 'S': return "it sleeps";
    case 'D': return "it waits for a disk or another device";
    case 'T':
    case 't': return "it is stopped";
    default: return "";
  }
}

const RecordedGroup* group_named(const RankRecord& rank, const char* name) {
  const int index = group_index(rank, name);
  return index < 0 ? nullptr : &rank.groups[index];
}

bool contains(const std::vector<int>& ranks, int rank) {
  return std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

// Reads the record for one view.
class Viewer {
 public:
  Viewer(const JobRecord& record, const std::vector<ProcessEnd>& ends) : record_(record), ends_(ends) {
    view_.progress = progress_of(record);
    view_.job.ranks.resize(record.world_size(), {.activity = Activity::kIsRemote});
    for (const int rank : record.local_ranks()) read_rank(rank);
    for (auto& open : view_.job.open_calls) add_lines_apart(open);
    find_stuck();
  }

  JobView finish() { return std::move(view_); }

  // Member by member: the call of this number, if it has been made.
  static OpenCall collective(const JobRecord& record, const RecordedGroup& group, std::uint64_t sequence) {
    OpenCall open{.group = group.name,
                  .members = {group.members, group.members + group.size},
                  .sequence = sequence,
                  .calls = std::vector<std::optional<Call>>(group.size)};
    for (std::int32_t member = 0; member < group.size; ++member) {
      const int rank = group.members[member];
      if (!record.is_local(rank)) continue;
      const auto* const theirs = group_named(record.rank(rank), group.name);
      if (theirs == nullptr || theirs->num_calls.load(std::memory_order_acquire) <= sequence) continue;
      const auto& slot = theirs->slots[sequence % kCalls];
      const bool is_kept = slot.number.load(std::memory_order_acquire) == sequence + 1;
      const auto position = slot.position.load(std::memory_order_relaxed);
      open.calls[member] = is_kept ? call_at(record.rank(rank), position) : std::nullopt;
    }
    return open;
  }

 private:
  [[nodiscard]] ProcessEnd end_of(int rank) const {
    const auto local = static_cast<std::size_t>(rank - record_.first_rank());
    return local < ends_.size() ? ends_[local] : ProcessEnd();
  }

  void read_rank(int rank) {
    const auto& own = record_.rank(rank);
    auto& state = view_.job.ranks[rank];
    const auto num_calls = own.num_calls.load(std::memory_order_acquire);
    const auto process = end_of(rank);
    const auto end = own.end.load(std::memory_order_acquire);
    if (const auto last = copy_of(own, num_calls)) state.last_call = place_of(own, *last);
    std::vector<std::uint64_t> positions;
    for (const auto& place : own.waits) {
      if (const auto position = place.load(std::memory_order_acquire); position != 0) positions.push_back(position);
    }
    const bool has_ended = process.has_ended || end != RankEnd::kNone;
    if (has_ended && positions.empty()) positions.push_back(own.failed_call.load(std::memory_order_acquire));
    bool all_open = true;
    for (const auto position : positions) {
      const auto call = copy_of(own, position);
      if (!call) continue;
      state.waits.push_back(place_of(own, *call));
      all_open = add_wait(rank, own, *call) && all_open;
    }
    const auto num_waiting_threads = state.waits.size();
    // A rank that fails of its own accord does not wait for what its GPU has not ended. One that has returned does.
    const bool fails = end == RankEnd::kFailed || (process.has_ended && end != RankEnd::kConsequence);
    const auto on_gpu = fails ? 0 : own.gpu_wait.load(std::memory_order_acquire);
    if (const auto call = copy_of(own, on_gpu)) {
      if (all_open && add_wait(rank, own, *call)) {
        state.waits.push_back(place_of(own, *call));
        gpu_waits_.push_back(rank);
      } else if (!has_ended) {
        state.detail = "its GPU is in " + accel::describe(place_of(own, *call));
      }
    }
    const bool waits = !state.waits.empty();
    state.activity = waits ? Activity::kWaits : has_ended ? Activity::kHasLeft : Activity::kRuns;
    if (state.activity == Activity::kHasLeft) state.detail = process.detail;
    const bool is_waiting = waits && all_open;
    if (is_waiting) view_.waiting.push_back(rank);
    // A thread that does not wait may do what another waits for. A rank that has failed is about to end, and its end
    // explains more than a wait for it.
    if (is_waiting &&
        (has_ended || num_waiting_threads >=
                          std::max<std::size_t>(1, std::max(own.num_threads.load(), own.num_program_threads.load()))))
      blocked_.push_back(rank);
    const bool is_gone = process.has_ended || end == RankEnd::kLeft;
    if (is_gone) gone_.push_back(rank);
    if (!is_waiting && !is_gone) view_.elsewhere.push_back(rank);
  }

  // Returns whether the call lacks other ranks.
  bool add_wait(int rank, const RankRecord& own, const CopiedCall& call) {
    const auto& group = own.groups[call.group];
    if (is_message(call.facts.op)) return add_message(rank, own, call);
    for (std::size_t index = 0; index < view_.job.open_calls.size(); ++index) {
      auto& open = view_.job.open_calls[index];
      if (open.is_message || open.group != group.name || open.sequence != call.sequence) continue;
      open.waiters.push_back(rank);
      return true;
    }
    auto open = collective(record_, group, call.sequence);
    open.waiters.push_back(rank);
    // A member that has joined long ago has joined, even if its call is no longer in the record.
    for (std::size_t member = 0; member < open.members.size(); ++member) {
      if (!open.calls[member] && has_joined(open, open.members[member])) open.calls[member] = call_of(own, call);
    }
    if (missing_in(open).empty()) return false;
    view_.job.open_calls.push_back(std::move(open));
    return true;
  }

  [[nodiscard]] bool has_joined(const OpenCall& open, int rank) const {
    if (!record_.is_local(rank)) return false;
    const auto* const group = group_named(record_.rank(rank), open.group.c_str());
    return group != nullptr && group->num_calls.load(std::memory_order_acquire) > open.sequence;
  }

  // Messages of all tags are counted together, so a message with another tag counts as the one that is missing: the
  // rank is then suspected, not condemned.
  bool add_message(int rank, const RankRecord& own, const CopiedCall& call) {
    const auto& group = own.groups[call.group];
    const bool sends = call.facts.op == Collective::kSend;
    const int own_member = member_index(group, rank);
    std::uint64_t posted = 0;  // at the other end
    for (std::int32_t member = 0; member < group.size; ++member) {
      if (member == own_member || (call.peer >= 0 && member != call.peer)) continue;
      if (!record_.is_local(group.members[member])) return false;
      const auto* const theirs = group_named(record_.rank(group.members[member]), group.name);
      if (theirs == nullptr) continue;
      posted += (sends ? theirs->received : theirs->sent)[own_member].load(std::memory_order_acquire);
      if (sends && theirs->received_from_any.load(std::memory_order_acquire) > 0) return false;
    }
    if (posted > call.sequence || own.groups[call.group].received_from_any.load() > call.sequence + 1) return false;
    view_.job.open_calls.push_back({.group = group.name,
                                    .members = {group.members, group.members + group.size},
                                    .sequence = call.sequence,
                                    .is_message = true,
                                    .peer = call.peer < 0 ? -1 : group.members[call.peer],
                                    .calls = {call_of(own, call)},
                                    .waiters = {rank}});
    return true;
  }

  // World ranks that have to act before the call can end.
  [[nodiscard]] std::vector<int> missing_in(const OpenCall& open) const {
    if (open.is_message && open.peer >= 0) return {open.peer};
    std::vector<int> missing;
    for (std::size_t member = 0; member < open.members.size(); ++member) {
      const int rank = open.members[member];
      if (open.is_message ? rank != open.waiters.front() : record_.is_local(rank) && !open.calls[member])
        missing.push_back(rank);
    }
    return missing;
  }

  // A rank is stuck unless it runs, or each of its waits can end: all whom a wait lacks are not stuck (of a message
  // from anybody, one). Ranks of other hosts are taken as not stuck.
  void find_stuck() {
    if (record_.is_elastic() && waits_for_lost()) return;  // such a wait is about to be given up
    std::vector<bool> lives(record_.world_size(), true);
    for (const int rank : record_.local_ranks()) lives[rank] = false;
    for (const int rank : view_.elsewhere) lives[rank] = true;
    for (const int rank : view_.waiting) lives[rank] = !contains(blocked_, rank);
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const int rank : blocked_) {
        if (lives[rank] || !can_continue(rank, lives)) continue;
        lives[rank] = has_changed = true;
      }
    }
    for (const int rank : view_.waiting) {
      if (!lives[rank] || waits_for_gone(rank)) view_.stuck.push_back(rank);
    }
  }

  [[nodiscard]] bool waits_for_lost() const {
    const auto& calls = view_.job.open_calls;
    return std::any_of(calls.begin(), calls.end(), [&](const OpenCall& open) {
      return std::any_of(open.members.begin(), open.members.end(), [&](int rank) { return contains(gone_, rank); });
    });
  }

  // A GPU never leaves a collective that a rank does not join, whatever the threads of its own rank do.
  [[nodiscard]] bool waits_for_gone(int rank) const {
    if (!contains(gpu_waits_, rank)) return false;
    return std::any_of(view_.job.open_calls.begin(), view_.job.open_calls.end(), [&](const OpenCall& open) {
      const auto missing = missing_in(open);
      return contains(open.waiters, rank) &&
             std::any_of(missing.begin(), missing.end(), [&](int other) { return contains(gone_, other); });
    });
  }

  [[nodiscard]] bool can_continue(int rank, const std::vector<bool>& lives) const {
    bool is_open = false;
    for (const auto& open : view_.job.open_calls) {
      if (!contains(open.waiters, rank)) continue;
      is_open = true;
      const auto missing = missing_in(open);
      const auto can_act = [&](int other) { return lives[other]; };
      const bool can_end = open.is_message && open.peer < 0 ? std::any_of(missing.begin(), missing.end(), can_act)
                                                            : std::all_of(missing.begin(), missing.end(), can_act);
      if (can_end) return true;
    }
    return !is_open;
  }

  // The first of the kept collectives that all members have called, from different lines.
  void add_lines_apart(const OpenCall& open) {
    if (open.is_message || view_.job.lines_apart.contains(open.group)) return;
    const auto* const group = group_named(record_.rank(open.waiters.front()), open.group.c_str());
    const auto first = open.sequence < kCalls ? 0 : open.sequence - kCalls + 1;
    for (auto sequence = first; group != nullptr && sequence < open.sequence; ++sequence) {
      auto calls = collective(record_, *group, sequence).calls;
      const bool are_known = std::all_of(calls.begin(), calls.end(), [](auto& call) { return call.has_value(); });
      if (!are_known || std::all_of(calls.begin(), calls.end(),
                                    [&](auto& call) { return same_source_line(call->where, calls.front()->where); })) {
        continue;
      }
      view_.job.lines_apart.insert({open.group, {sequence, std::move(calls)}});
      return;
    }
  }

  const JobRecord& record_;
  const std::vector<ProcessEnd>& ends_;
  JobView view_;
  std::vector<int> blocked_;    // ranks all of whose threads wait
  std::vector<int> gpu_waits_;  // ranks whose GPU waits
  std::vector<int> gone_;       // ranks that have returned from their programs or have no process
};

// Those of an all-to-all are no part of its Call.
void add_recorded_shapes(const JobRecord& record, OpenCall& open, int member) {
  auto& call = open.calls[member];
  if (!call) return;
  const auto& rank = record.rank(open.members[member]);
  const auto* const group = group_named(rank, open.group.c_str());
  const auto copied = copy_of(rank, group->slots[open.sequence % kCalls].position.load(std::memory_order_relaxed));
  if (copied) add_shapes(*call, copied->facts);
}

}  // namespace

std::optional<Call> call_at(const RankRecord& rank, std::uint64_t position) {
  const auto copied = copy_of(rank, position);
  if (!copied) return std::nullopt;
  return call_of(rank, *copied);
}

std::uint64_t progress_of(const JobRecord& record) {
  std::uint64_t hash = 0;
  const auto note = [&](std::uint64_t number) { hash = (hash ^ number) * 0x9e37'79b9'7f4a'7c15ull + 1; };
  for (const int local : record.local_ranks()) {
    const auto& rank = record.rank(local);
    note(rank.num_calls.load(std::memory_order_relaxed));
    note(static_cast<std::uint64_t>(rank.end.load(std::memory_order_relaxed)));
    note(rank.failed_call.load(std::memory_order_relaxed));
    for (const auto& wait : rank.waits) note(wait.load(std::memory_order_relaxed));
    note(rank.gpu_wait.load(std::memory_order_relaxed));
  }
  return hash;
}

std::optional<CallPlace> place_at(const RankRecord& rank, std::uint64_t position) {
  const auto copied = copy_of(rank, position);
  if (!copied) return std::nullopt;
  return place_of(rank, *copied);
}

std::string process_state(const JobRecord& record, int world_rank) {
  const auto pid = record.rank(world_rank).pid.load();
  return pid == 0 ? "it has not joined the job" : state_of(pid);
}

void add_process_states(const JobRecord& record, JobView& view) {
  for (const int rank : view.elsewhere) {
    auto& detail = view.job.ranks[rank].detail;
    detail += (detail.empty() ? "" : ", ") + process_state(record, rank);
  }
}

bool has_process_ended(const JobRecord& record, int world_rank) {
  const auto pid = record.rank(world_rank).pid.load();
  return pid != 0 && state_letter(pid) == ' ';
}

std::vector<ProcessEnd> ends_of_processes(const JobRecord& record) {
  std::vector<ProcessEnd> ends;
  for (const int rank : record.local_ranks()) {
    auto& end = ends.emplace_back();
    end.has_ended = has_process_ended(record, rank);
    if (end.has_ended && record.rank(rank).end.load() != RankEnd::kLeft) end.detail = "its process has ended";
  }
  return ends;
}

bool is_able_to_run(pid_t pid) { return std::string_view("RSDI").find(state_letter(pid)) != std::string_view::npos; }

// Below /proc the descriptors of a process are links, whose text shows the name of the memory.
std::shared_ptr<JobRecord> record_of_process(pid_t pid) {
  const auto folder = fmt::format("/proc/{}/fd", pid);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    const auto target = std::filesystem::read_symlink(entry.path(), error);
    if (error || !target.string().starts_with("/memfd:accel-record")) continue;
    const int descriptor = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    if (descriptor >= 0) return JobRecord::attach(descriptor);
  }
  throw ConfigError(fmt::format("process {}: {}", pid,
                                error ? "its descriptors cannot be read: " + error.message()
                                      : "it is neither a launcher nor a rank of a job that is recorded"));
}

JobView JobReader::view(const std::vector<ProcessEnd>& ends) const { return Viewer(*record_, ends).finish(); }

std::optional<OpenCall> JobReader::condemned_call() const {
  const auto& verdict = record_->verdict();
  if (!record_->has_verdict()) return std::nullopt;
  const auto& group = record_->rank(verdict.finder).groups[verdict.group];
  return Viewer::collective(*record_, group, verdict.sequence);
}

Diagnosis diagnose_condemned(const JobRecord& record, OpenCall open) {
  const auto first = std::find_if(open.calls.begin(), open.calls.end(), [](auto& call) { return call.has_value(); });
  const bool are_equal =
      std::all_of(first, open.calls.end(), [&](auto& call) { return !call || agree(*call, **first); });
  const auto mismatches =
      are_equal ? split_mismatches(record, open.group, open.sequence) : std::vector<SplitMismatch>();
  if (mismatches.empty()) return diagnose_difference(open);
  for (std::size_t member = 0; member < open.members.size(); ++member)
    add_recorded_shapes(record, open, static_cast<int>(member));
  return diagnose_splits(open, mismatches);
}

Diagnosis await_difference(const std::shared_ptr<JobRecord>& record) {
  using Clock = std::chrono::steady_clock;
  const JobReader reader(record);
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  const auto lacks_a_local_call = [&](const OpenCall& open) {
    for (std::size_t member = 0; member < open.members.size(); ++member) {
      if (record->is_local(open.members[member]) && !open.calls[member]) return true;
    }
    return false;
  };
  auto open = reader.condemned_call();
  while (open && lacks_a_local_call(*open) && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    open = reader.condemned_call();
  }
  if (!open) throw InternalError("a difference without a verdict");
  return diagnose_condemned(*record, std::move(*open));
}

}  // namespace accel::recorder
