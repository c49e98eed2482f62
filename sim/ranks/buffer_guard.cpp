// What a rank may do with its tensors between a call and wait(). Operators are watched only while collectives are
// pending, see Note [Watching operators].
#include "sim/ranks/buffer_guard.hpp"

#include <algorithm>

#include "sim/engine/group_state.hpp"

namespace accel::sim {
namespace {

// Whether the program, or another collective, must wait before it reads or writes there.
bool conflicts(const PendingMemory& used, const char* begin, const char* end, bool writes) {
  return (writes || used.is_written) && used.begin < end && begin < used.end && !(used.is_freed && used.is_freed());
}

}  // namespace

// Two pending collectives may read the same memory, but not if one of them writes it. Memory that has been freed is
// skipped: nobody can touch it, and the allocator may have reused it.
void BufferGuard::issue(std::shared_ptr<Meeting> meeting, const Call& call, std::vector<PendingMemory> memory) {
  std::erase_if(in_flight_, [](const auto& one) {
    return std::ranges::all_of(one.memory, [](const auto& used) { return used.is_freed && used.is_freed(); });
  });
  InFlight next{.meeting = std::move(meeting), .where = call.where, .memory = std::move(memory)};
  for (const auto& other : in_flight_) {
    if (other.is_partial || (other.ends_with_meeting && other.meeting->has_ended())) continue;
    for (const auto& own : next.memory) {
      for (const auto& used : other.memory) {
        if (conflicts(used, own.begin, own.end, own.is_written)) {
          const bool ends =
              report(other, fmt::format("its tensor overlaps with the tensor of {}, which was called before wait()",
                                        name_of(call.op)));
          if (ends) return;
        }
      }
    }
  }
  for (const auto& own : next.memory) {
    if (own.is_written) touch(own.begin, own.end, /*writes=*/true, "");  // a new result replaces a partial one
  }
  if (next.memory.empty()) return;
  in_flight_.push_back(std::move(next));
  start();
}

// Partial results stay watched after `wait()`: that is when the program might use them.
void BufferGuard::release(const Meeting& meeting) {
  std::erase_if(in_flight_, [&](const auto& one) { return one.meeting.get() == &meeting && !one.is_partial; });
  stop_if_idle();
}

void BufferGuard::release_closed() {
  std::erase_if(in_flight_, [](const auto& one) {
    return one.meeting->has_group() && one.meeting->group().state->connection.is_broken();
  });
  stop_if_idle();
}

void BufferGuard::release_at_end(const Meeting& meeting) {
  for (auto& one : in_flight_) {
    if (one.meeting.get() == &meeting) one.ends_with_meeting = true;
  }
}

void BufferGuard::report_touch(const Meeting& meeting, const std::string& what) {
  const auto one = std::find_if(in_flight_.begin(), in_flight_.end(),
                                [&](const auto& other) { return other.meeting.get() == &meeting; });
  if (one != in_flight_.end()) report(*one, fmt::format("its tensor is {} before wait()", what));
}

void BufferGuard::hold_partial(const Meeting& meeting, std::vector<PendingMemory> memory) {
  if (memory.empty()) return;
  for (const auto& one : in_flight_) {
    if (one.meeting.get() != &meeting) continue;
    in_flight_.push_back({.meeting = one.meeting, .where = one.where, .memory = std::move(memory), .is_partial = true});
    return;
  }
}

void BufferGuard::clear() { in_flight_.clear(); }

void BufferGuard::stop_if_idle() {
  if (in_flight_.empty()) stop();
}

// Erases what is over or has been overwritten while it searches, so the list stays short and a partial result
// is reported once.
void BufferGuard::touch(const char* begin, const char* end, bool writes, const char* op) {
  for (auto one = in_flight_.begin(); one != in_flight_.end();) {
    const bool over = one->ends_with_meeting && one->meeting->has_ended();
    const bool is_hit =
        std::ranges::any_of(one->memory, [&](const auto& used) { return conflicts(used, begin, end, writes); });
    if (over || (is_hit && one->is_partial && writes)) {
      one = in_flight_.erase(one);
      continue;
    }
    if (is_hit) {
      const bool ends =
          one->is_partial
              ? world_.report(Check::kPartialSums,
                              fmt::format("{}: rank {} is not the root, and {} reads its tensor afterwards; it holds "
                                          "partial sums, as in Gloo; read the result on the root only",
                                          one->meeting->name(), rank_, op))
              : report(*one, fmt::format("its tensor is {} by {} before wait()", writes ? "changed" : "read", op));
      if (ends) return;
      one = in_flight_.erase(one);
      continue;
    }
    ++one;
  }
}

bool BufferGuard::report(const InFlight& in_flight, const std::string& what) {
  const auto& meeting = *in_flight.meeting;
  Diagnosis diagnosis{.ranks = {rank_}};
  const auto* call = meeting.any_call();
  name_call(diagnosis, call != nullptr ? *call : Call{}, meeting.group().name, meeting.sequence());
  diagnosis.where = describe(in_flight.where);  // this rank's line
  diagnosis.text =
      fmt::format("{}{}: rank {} has not waited for it, and {}; this is a race on real backends; call wait() first",
                  meeting.name(), diagnosis.where.empty() ? "" : " at " + diagnosis.where, rank_, what);
  return world_.report(Check::kRaces, std::move(diagnosis));
}

}  // namespace accel::sim
