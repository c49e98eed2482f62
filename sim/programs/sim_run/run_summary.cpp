#include "sim/programs/sim_run/run_summary.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "sim/report/quantity.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

// JSON has no NaN and no infinity.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

double accuracy_of(const RunSummary& summary) {
  return static_cast<double>(summary.eval_correct) / static_cast<double>(summary.eval_samples);
}

std::string ranks_text(const RunSummary& summary) {
  if (summary.backend == "sim") return sim::report::plural(summary.num_ranks, "simulated rank");
  return fmt::format("{} {} over {}", sim::report::count_text(summary.num_ranks),
                     summary.num_ranks == 1 ? "process" : "processes", summary.backend);
}

std::string memory_text(const std::vector<std::pair<std::string, std::int64_t>>& memory) {
  std::string text;
  for (const auto& [kind, bytes] : memory) {
    if (bytes == 0) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", kind, sim::report::bytes_text(static_cast<double>(bytes)));
  }
  return text;
}

}  // namespace

RunSummary summarize(const std::vector<RankResult>& results) {
  const auto& first = results.front();
  RunSummary summary;
  summary.num_ranks = static_cast<std::int64_t>(results.size());
  summary.steps = first.steps;
  summary.loss = first.steps > 0 ? first.loss : std::numeric_limits<double>::quiet_NaN();
  summary.eval_correct = first.eval_correct;
  summary.eval_samples = first.eval_samples;
  summary.is_sharded = first.is_sharded;
  summary.memory = largest_memory(results);
  // Ranks train at the same time, so the seconds of the slowest one count.
  for (const auto& result : results) {
    summary.samples += result.samples;
    summary.seconds = std::max(summary.seconds, result.seconds);
  }
  return summary;
}

// The largest rank decides whether a model fits, so a mean would mislead.
std::vector<std::pair<std::string, std::int64_t>> largest_memory(const std::vector<RankResult>& results) {
  std::vector<std::pair<std::string, std::int64_t>> memory;
  for (std::size_t kind = 0; kind < sharded::kMemoryKindNames.size(); ++kind) {
    std::int64_t most = 0;
    for (const auto& result : results)
      most = std::max(most, result.memory.most(static_cast<sharded::MemoryKind>(kind)));
    memory.emplace_back(sharded::kMemoryKindNames[kind], most);
  }
  return memory;
}

// Other programs read this line: keys and their order are fixed.
std::string summary_line(const RunSummary& summary) {
  const bool was_evaluated = summary.eval_samples > 0;
  Json json{{"ranks", summary.num_ranks},
            {"backend", summary.backend},
            {"steps", summary.steps},
            {"samples", summary.samples},
            {"seconds", number(summary.seconds)},
            {"steps_per_second", number(static_cast<double>(summary.steps) / summary.seconds)},
            {"samples_per_second", number(static_cast<double>(summary.samples) / summary.seconds)},
            {"loss", number(summary.loss)},
            {"eval_accuracy", was_evaluated ? number(accuracy_of(summary)) : Json(nullptr)},
            {"eval_samples", was_evaluated ? Json(summary.eval_samples) : Json(nullptr)},
            {"peak_rss_bytes", summary.peak_rss_bytes}};
  if (summary.is_sharded) {
    for (const auto& [kind, bytes] : summary.memory) json["memory"][kind] = bytes;
  }
  return json.dump();
}

std::string summary_text(const RunSummary& summary) {
  using namespace sim::report;
  auto text = fmt::format("{}: {}, {} in {}\n", std::filesystem::path(summary.experiment).stem().string(),
                          ranks_text(summary), plural(summary.steps, "step"), seconds_text(summary.seconds));
  const auto add = [&](const char* name, const std::string& value) {
    text += fmt::format("  {:<10}{}\n", name, value);
  };
  if (summary.steps > 0 && summary.seconds > 0)
    add("speed",
        fmt::format("{} samples/s, {} steps/s", number_text(static_cast<double>(summary.samples) / summary.seconds),
                    number_text(static_cast<double>(summary.steps) / summary.seconds)));
  if (summary.steps > 0) add("loss", std::isfinite(summary.loss) ? fmt::format("{:.4g}", summary.loss) : "not finite");
  if (summary.eval_samples > 0)
    add("accuracy", fmt::format("{:.1f} % of {}", 100 * accuracy_of(summary), plural(summary.eval_samples, "sample")));
  // Simulated ranks share the program and the data, so the part of a rank is a mean.
  const auto bytes = static_cast<double>(summary.peak_rss_bytes);
  add("memory", fmt::format("{} per rank, {} in total", bytes_text(bytes / static_cast<double>(summary.num_ranks)),
                            bytes_text(bytes)));
  if (summary.is_sharded) add("state", fmt::format("at most per rank: {}", memory_text(summary.memory)));
  if (!summary.report.empty()) add("report", summary.report);
  return text;
}

}  // namespace accel::programs
