// Aggregates events as torch/autograd/profiler_util.py does. The call tree is reconstructed from the times,
// because neither recorder stores it.
#include "reference/profiler/key_averages.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

using profiler::ProfileEvent;

// Values that depend on the call tree: time without callees, and memory with and without callees.
struct Own {
  std::int64_t self_ns = 0, self_bytes = 0, bytes = 0;
};

bool is_memory(const ProfileEvent& event) { return event.name == "[memory]"; }

// Sweeps over the events of each thread in start order, with a stack of open events. On one thread, events are
// either nested or disjoint, so the innermost open event is the caller. Ties put the longer event first: the
// caller starts no later than its callee. Device events have no callers and are skipped.
std::vector<Own> own_of(const std::vector<ProfileEvent>& events) {
  std::vector<std::size_t> order(events.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const auto& x = events[a];
    const auto& y = events[b];
    return std::tuple(x.thread, x.start_ns, -x.duration_ns) < std::tuple(y.thread, y.start_ns, -y.duration_ns);
  });
  std::vector<Own> own(events.size());
  std::vector<std::size_t> open;
  for (const auto index : order) {
    const auto& event = events[index];
    if (event.on_device) continue;
    const auto is_over = [&](const ProfileEvent& caller) {
      return caller.thread != event.thread || caller.start_ns + caller.duration_ns < event.start_ns + event.duration_ns;
    };
    while (!open.empty() && is_over(events[open.back()])) open.pop_back();
    if (is_memory(event)) {
      for (const auto caller : open) own[caller].bytes += event.cpu_bytes;
      if (!open.empty()) own[open.back()].self_bytes += event.cpu_bytes;
      continue;
    }
    own[index].self_ns = event.duration_ns;
    if (!open.empty()) own[open.back()].self_ns -= event.duration_ns;
    open.push_back(index);
  }
  return own;
}

// Source: torch/autograd/profiler_util.py, _format_time.
std::string time_text(std::int64_t nanoseconds) {
  const auto time = static_cast<double>(nanoseconds);
  return time >= 1e9   ? fmt::format("{:.3f}s", time / 1e9)
         : time >= 1e6 ? fmt::format("{:.3f}ms", time / 1e6)
                       : fmt::format("{:.3f}us", time / 1e3);
}

std::int64_t column(const KeyAverage& row, const std::string& name) {
  if (name == "self_cpu_time_total") return row.self_cpu_time_total_ns;
  if (name == "cpu_time_total") return row.cpu_time_total_ns;
  if (name == "device_time_total") return row.device_time_total_ns;
  if (name == "self_cpu_memory_usage") return row.self_cpu_memory_usage;
  if (name == "cpu_memory_usage") return row.cpu_memory_usage;
  if (name == "flops") return row.flops;
  if (name == "count") return row.count;
  throw ArgumentError(
      fmt::format("table: unknown sort_by '{}'; expected self_cpu_time_total, cpu_time_total, device_time_total, "
                  "self_cpu_memory_usage, cpu_memory_usage, flops or count",
                  name));
}

}  // namespace

// The rows are in the order of names and shapes; table() sorts by time.
KeyAverages key_averages(const std::vector<ProfileEvent>& events, bool group_by_input_shape) {
  const auto own = own_of(events);
  std::map<std::pair<std::string, std::vector<std::vector<std::int64_t>>>, KeyAverage> rows;
  for (std::size_t index = 0; index < events.size(); ++index) {
    const auto& event = events[index];
    if (is_memory(event)) continue;
    const auto shapes = group_by_input_shape ? event.input_shapes : std::vector<std::vector<std::int64_t>>();
    auto& row =
        rows.try_emplace({event.name, shapes}, KeyAverage{.key = event.name, .input_shapes = shapes}).first->second;
    ++row.count;
    row.flops += event.flops;
    (event.on_device ? row.device_time_total_ns : row.cpu_time_total_ns) += event.duration_ns;
    row.self_cpu_time_total_ns += own[index].self_ns;
    row.self_cpu_memory_usage += own[index].self_bytes;
    row.cpu_memory_usage += own[index].bytes;
  }
  KeyAverages averages;
  for (auto& [key, row] : rows) averages.push_back(std::move(row));
  return averages;
}

// Percentages refer to the sum over all rows, also if row_limit hides some. stable_sort keeps the order of names
// for equal values.
std::string KeyAverages::table(const TableOptions& options) const {
  auto rows = *this;
  (void)column({}, options.sort_by);  // rejects an unknown name even if there are no rows
  std::stable_sort(rows.begin(), rows.end(), [&](const auto& a, const auto& b) {
    return column(a, options.sort_by) > column(b, options.sort_by);
  });
  const auto all = std::accumulate(begin(), end(), std::int64_t{0},
                                   [](std::int64_t sum, const auto& row) { return sum + row.self_cpu_time_total_ns; });
  const auto percent = [&](std::int64_t time) {
    return fmt::format("{:.2f}%", all > 0 ? 100. * static_cast<double>(time) / static_cast<double>(all) : 0.);
  };
  constexpr auto kRow = "{:<40}  {:>10}  {:>12}  {:>10}  {:>12}  {:>12}  {:>12}  {:>14}  {:>14}  {:>10}\n";
  auto text = fmt::format(kRow, "Name", "Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg",
                          "Device total", "CPU Mem [B]", "FLOPs", "# of Calls");
  for (std::size_t index = 0; index < std::min(rows.size(), options.row_limit); ++index) {
    const auto& row = rows[index];
    text += fmt::format(kRow, row.key.substr(0, 40), percent(row.self_cpu_time_total_ns),
                        time_text(row.self_cpu_time_total_ns), percent(row.cpu_time_total_ns),
                        time_text(row.cpu_time_total_ns), time_text(row.cpu_time_total_ns / row.count),
                        time_text(row.device_time_total_ns), row.cpu_memory_usage, row.flops, row.count);
  }
  return text + fmt::format("Self CPU time total: {}\n", time_text(all));
}

}  // namespace accel
