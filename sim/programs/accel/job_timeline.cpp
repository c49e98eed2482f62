#include "sim/programs/accel/job_timeline.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>

namespace accel::programs {
namespace {

using recorder::LoggedCall;
using Calls = std::vector<std::vector<LoggedCall>>;
using Nanoseconds = std::int64_t;

struct Arrival {
  int rank = -1;
  Nanoseconds at = 0;
};
using Arrivals = std::map<std::pair<std::string, std::int64_t>, Arrival>;  // by group and number: the last rank

bool is_drawn(const LoggedCall& call) { return call.end_ns != 0; }

Arrivals last_arrivals(const Calls& calls) {
  Arrivals last;
  for (std::size_t rank = 0; rank < calls.size(); ++rank) {
    for (const auto& call : calls[rank]) {
      if (is_message(call.op)) continue;
      auto& arrival = last[{call.group, call.sequence}];
      if (call.begin_ns > arrival.at) arrival = {static_cast<int>(rank), call.begin_ns};
    }
  }
  return last;
}

// Draws the calls of one rank.
class RankDrawing {
 public:
  RankDrawing(Nanoseconds origin, const Arrivals& last) : origin_(origin), last_(last) {}

  std::vector<sim::Slice> draw(const std::vector<LoggedCall>& calls) {
    for (const auto& call : calls) {
      if (!is_drawn(call)) continue;
      add(sim::SliceKind::kCollective, call, call.begin_ns, call.end_ns);
      if (call.wait_ns != 0) add_wait(call);
    }
    add_compute(calls);
    return std::move(slices_);
  }

 private:
  [[nodiscard]] double seconds(Nanoseconds time) const { return static_cast<double>(time - origin_) * 1e-9; }

  sim::Slice& add(sim::SliceKind kind, const LoggedCall& call, Nanoseconds begin, Nanoseconds end) {
    slices_.push_back({.kind = kind,
                       .name = std::string(name_of(call.op)),
                       .begin = seconds(begin),
                       .end = seconds(std::max(begin, end)),
                       .group = call.group,
                       .sequence = call.sequence,
                       .bytes = call.bytes});
    return slices_.back();
  }

  // A rank that arrived after the wait had begun is whom it waited for.
  void add_wait(const LoggedCall& call) {
    auto& wait = add(sim::SliceKind::kWait, call, call.wait_ns, call.end_ns);
    waits_.emplace_back(call.wait_ns, call.end_ns);
    const auto last = last_.find({call.group, call.sequence});
    if (last != last_.end() && last->second.at > call.wait_ns) wait.released_by = last->second.rank;
  }

  // What the rank does while it waits for no other.
  void add_compute(const std::vector<LoggedCall>& calls) {
    std::sort(waits_.begin(), waits_.end());
    auto free_since = calls.empty() ? 0 : calls.front().begin_ns;
    for (const auto& [begin, end] : waits_) {
      if (begin > free_since) {
        slices_.push_back(
            {.kind = sim::SliceKind::kCompute, .name = "compute", .begin = seconds(free_since), .end = seconds(begin)});
      }
      free_since = std::max(free_since, end);
    }
  }

  const Nanoseconds origin_;
  const Arrivals& last_;
  std::vector<sim::Slice> slices_;
  std::vector<std::pair<Nanoseconds, Nanoseconds>> waits_;
};

}  // namespace

sim::Timeline timeline_of(const Calls& calls) {
  auto origin = std::numeric_limits<Nanoseconds>::max();
  for (const auto& rank : calls) {
    for (const auto& call : rank) origin = std::min(origin, call.begin_ns);
  }
  const auto last = last_arrivals(calls);
  sim::Timeline timeline;
  for (const auto& rank : calls) timeline.ranks.push_back({.wall_clock = RankDrawing(origin, last).draw(rank)});
  return timeline;
}

}  // namespace accel::programs
