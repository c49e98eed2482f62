#include "reference/recorder/call_log.hpp"

#include <algorithm>
#include <optional>

namespace accel::recorder {
namespace {

// Absent while the rank writes the call, and once it has overwritten it.
std::optional<LoggedCall> logged(const RankRecord& rank, std::uint64_t position) {
  const auto& call = rank.calls[position % kCalls];
  if (call.position.load(std::memory_order_acquire) != position) return std::nullopt;
  const auto group = std::min<std::size_t>(call.group, kGroups - 1);
  LoggedCall logged{.op = call.facts.op,
                    .group = rank.groups[group].name,
                    .sequence = static_cast<std::int64_t>(call.sequence),
                    .bytes = call.facts.bytes,
                    .begin_ns = call.begin_ns.load(std::memory_order_relaxed),
                    .wait_ns = call.wait_ns.load(std::memory_order_relaxed),
                    .end_ns = call.end_ns.load(std::memory_order_relaxed)};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (call.position.load(std::memory_order_relaxed) != position) return std::nullopt;
  return logged;
}

}  // namespace

CallLog::CallLog(std::shared_ptr<JobRecord> record) : record_(std::move(record)) { clear(); }

void CallLog::clear() {
  calls_.assign(record_->world_size(), {});
  positions_.assign(record_->world_size(), 0);
  pending_.assign(record_->world_size(), {});
  num_missed_ = 0;
}

void CallLog::collect() {
  for (const int rank : record_->local_ranks()) {
    collect_ends(rank);
    collect_new(rank);
  }
}

// A call that is being written now is collected the next time, and those after it too.
void CallLog::collect_new(int rank) {
  const auto& own = record_->rank(rank);
  const auto end = own.num_calls.load(std::memory_order_acquire);
  auto& position = positions_[rank];
  if (end > position + kCalls) {
    num_missed_ += end - kCalls - position;
    position = end - kCalls;
  }
  for (; position < end; ++position) {
    auto call = logged(own, position + 1);
    if (!call && own.calls[(position + 1) % kCalls].position.load() <= position + 1) return;
    if (!call) {
      ++num_missed_;
      continue;
    }
    if (call->end_ns == 0) pending_[rank].push_back({position + 1, calls_[rank].size()});
    calls_[rank].push_back(std::move(*call));
  }
}

void CallLog::collect_ends(int rank) {
  const auto& own = record_->rank(rank);
  std::erase_if(pending_[rank], [&](const Pending& pending) {
    auto call = logged(own, pending.position);
    const bool is_lost = !call && own.calls[pending.position % kCalls].position.load() > pending.position;
    if (call) calls_[rank][pending.index] = std::move(*call);
    return is_lost || calls_[rank][pending.index].end_ns != 0;
  });
}

}  // namespace accel::recorder
