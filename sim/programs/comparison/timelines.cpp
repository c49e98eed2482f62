#include "sim/programs/comparison/timelines.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "sim/report/quantity.hpp"

namespace accel::programs {
namespace {

using sim::Slice;
using sim::SliceKind;
using sim::Timeline;
using sim::report::plural;
using sim::report::seconds_text;

struct Operation {
  std::int64_t calls = 0, waits = 0;
  double in_flight = 0, waiting = 0;  // seconds, over all ranks
};

struct Side {
  double duration = 0;              // seconds, of the whole timeline
  double compute = 0, waiting = 0;  // seconds, mean of the ranks
  std::map<std::string, Operation> operations = {};
  std::vector<std::vector<const Slice*>> calls = {};  // by rank, in their order
};

// Slices may nest, as a phase within a phase.
double covered_seconds(std::vector<std::pair<double, double>> spans) {
  std::sort(spans.begin(), spans.end());
  double covered = 0, end = 0;
  for (const auto& [from, to] : spans) {
    covered += std::max(0.0, to - std::max(from, end));
    end = std::max(end, to);
  }
  return covered;
}

double mean(double sum, std::int64_t count) { return count == 0 ? 0 : sum / static_cast<double>(count); }

Side side_of(const Timeline& timeline) {
  const bool is_virtual = std::any_of(timeline.ranks.begin(), timeline.ranks.end(),
                                      [](const auto& rank) { return !rank.virtual_clock.empty(); });
  Side side;
  for (const auto& rank : timeline.ranks) {
    auto& calls = side.calls.emplace_back();
    std::vector<std::pair<double, double>> compute, waits;
    for (const auto& slice : is_virtual ? rank.virtual_clock : rank.wall_clock) {
      side.duration = std::max(side.duration, slice.end);
      auto& operation = side.operations[slice.kind == SliceKind::kCompute ? "" : slice.name];
      if (slice.kind == SliceKind::kCollective) {
        calls.push_back(&slice);
        ++operation.calls;
        operation.in_flight += slice.end - slice.begin;
      } else if (slice.kind == SliceKind::kWait) {
        waits.emplace_back(slice.begin, slice.end);
        ++operation.waits;
        operation.waiting += slice.end - slice.begin;
      } else if (slice.kind == SliceKind::kCompute) {
        compute.emplace_back(slice.begin, slice.end);
      }
    }
    std::stable_sort(calls.begin(), calls.end(), [](auto* a, auto* b) { return a->begin < b->begin; });
    side.compute += covered_seconds(std::move(compute));
    side.waiting += covered_seconds(std::move(waits));
  }
  side.operations.erase("");
  const auto num_ranks = static_cast<std::int64_t>(side.calls.size());
  side.compute = mean(side.compute, num_ranks);
  side.waiting = mean(side.waiting, num_ranks);
  return side;
}

std::string row(const std::string& name, double a, double b) {
  return fmt::format("{:<44} {:>12} {:>12} {:>8}\n", name, seconds_text(a), seconds_text(b),
                     a > 0 ? fmt::format("{:.3f}", b / a) : "");
}

std::string describe(const Slice* call) {
  if (call == nullptr) return "no call";
  return fmt::format("{} #{} of group {} with {} bytes", call->name, call->sequence, call->group, call->bytes);
}

bool are_same(const Slice& a, const Slice& b) {
  return a.name == b.name && a.group == b.group && a.sequence == b.sequence && a.bytes == b.bytes;
}

// "" if the ranks make the same calls.
std::string first_difference(const Side& a, const Side& b) {
  if (a.calls.size() != b.calls.size())
    return fmt::format("a has {}, b has {}", plural(static_cast<std::int64_t>(a.calls.size()), "rank"),
                       plural(static_cast<std::int64_t>(b.calls.size()), "rank"));
  for (std::size_t rank = 0; rank < a.calls.size(); ++rank) {
    const auto &of_a = a.calls[rank], &of_b = b.calls[rank];
    for (std::size_t call = 0; call < std::max(of_a.size(), of_b.size()); ++call) {
      const auto* const in_a = call < of_a.size() ? of_a[call] : nullptr;
      const auto* const in_b = call < of_b.size() ? of_b[call] : nullptr;
      if (in_a == nullptr || in_b == nullptr || !are_same(*in_a, *in_b))
        return fmt::format("rank {}, call {}: a makes {}, b makes {}", rank, call, describe(in_a), describe(in_b));
    }
  }
  return "";
}

}  // namespace

TimelineComparison compare_timelines(const Timeline& timeline_a, const Timeline& timeline_b) {
  const auto a = side_of(timeline_a), b = side_of(timeline_b);
  auto text = fmt::format("{:<44} {:>12} {:>12} {:>8}\n", "", "a", "b", "b / a");
  text += row("duration", a.duration, b.duration);
  text += row("computing, mean of the ranks", a.compute, b.compute);
  text += row("waiting, mean of the ranks", a.waiting, b.waiting);
  std::set<std::string> names;
  for (const auto* const side : {&a, &b}) {
    for (const auto& [name, operation] : side->operations) names.insert(name);
  }
  const auto of = [](const Side& side, const std::string& name) {
    const auto found = side.operations.find(name);
    return found == side.operations.end() ? Operation() : found->second;
  };
  for (const auto& name : names) {
    const auto in_a = of(a, name), in_b = of(b, name);
    if (in_a.calls + in_b.calls == 0) continue;
    text += row(name + ", mean time in flight", mean(in_a.in_flight, in_a.calls), mean(in_b.in_flight, in_b.calls));
    text += row(name + ", mean wait", mean(in_a.waiting, in_a.waits), mean(in_b.waiting, in_b.waits));
  }
  const auto difference = first_difference(a, b);
  std::int64_t num_calls = 0;
  for (const auto& rank : a.calls) num_calls += static_cast<std::int64_t>(rank.size());
  text += difference.empty()
              ? fmt::format("equal: {}, {} on each side\n", plural(static_cast<std::int64_t>(a.calls.size()), "rank"),
                            plural(num_calls, "call"))
              : "different: " + difference + "\n";
  return {std::move(text), difference.empty()};
}

}  // namespace accel::programs
