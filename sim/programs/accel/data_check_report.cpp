#include "sim/programs/accel/data_check_report.hpp"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

std::string row_of(const RanksCheck& check) {
  if (!check.counts) return fmt::format("{:>6} {:>15}\n", check.ranks, "error");
  const auto& counts = *check.counts;
  const auto steps = counts.has_uneven_steps() ? fmt::format("{} or {}", counts.steps_min, counts.steps_max)
                                               : fmt::format("{}", counts.steps_max);
  return fmt::format("{:>6} {:>15} {:>13} {:>11} {:>11} {:>16}\n", check.ranks, steps, counts.samples_per_step,
                     counts.duplicated, counts.dropped, counts.ranks_without_batch);
}

Json json_of(const RanksCheck& check) {
  Json row = {{"ranks", check.ranks}};
  if (const auto& counts = check.counts) {
    row.update({{"steps_min", counts->steps_min},
                {"steps_max", counts->steps_max},
                {"samples_per_step", counts->samples_per_step},
                {"duplicated", counts->duplicated},
                {"dropped", counts->dropped},
                {"ranks_without_batch", counts->ranks_without_batch}});
  }
  row["findings"] = Json::array();
  for (const auto& [kind, text] : check.findings) row["findings"].push_back({{"kind", kind}, {"text", text}});
  return row;
}

}  // namespace

std::string data_check_table(const std::vector<LoaderCheck>& checks) {
  std::string table, findings;
  for (const auto& check : checks) {
    table += fmt::format("{}: {} samples, batch_size {}\n", check.name, check.request.length, check.request.batch_size);
    table += fmt::format("{:>6} {:>15} {:>13} {:>11} {:>11} {:>16}\n", "ranks", "steps", "samples/step", "duplicated",
                         "dropped", "without a batch");
    for (const auto& of_ranks : check.of_ranks) {
      table += row_of(of_ranks);
      for (const auto& finding : of_ranks.findings) {
        findings += fmt::format("{}, {} rank{}: {}\n", check.name, of_ranks.ranks, of_ranks.ranks == 1 ? "" : "s",
                                finding.text);
      }
    }
    table += "\n";
  }
  return table + (findings.empty() ? "no findings\n" : findings);
}

Json data_check_json(const std::vector<LoaderCheck>& checks) {
  Json loaders = Json::array();
  for (const auto& check : checks) {
    Json rows = Json::array();
    for (const auto& of_ranks : check.of_ranks) rows.push_back(json_of(of_ranks));
    loaders.push_back({{"name", check.name},
                       {"length", check.request.length},
                       {"batch_size", check.request.batch_size},
                       {"ranks", rows}});
  }
  return {{"loaders", loaders}};
}

}  // namespace accel::programs
