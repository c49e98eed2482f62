#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// The comparison of two runs as one self-contained HTML page, with the look of the page of a run.
///
///     ComparisonReport report{.title = "mlp on sim and gloo", .name_of_a = "a (sim)", .name_of_b = "b (gloo)"};
///     report.ranks = {{.observations = 96, .equal = 96}};
///     std::ofstream("index.html") << comparison_page(report);
///
/// Thread rule: values; comparison_page from any thread.
namespace accel::sim {

/// What one rank computed at one place, in both runs.
struct ComparedObservation {
  std::int64_t step = 0;
  std::string what;  ///< for example "the output of module fc1"
  std::string a, b;  ///< its value in each run
};

/// One rank.
struct ComparedRank {
  std::int64_t observations = 0, equal = 0;  ///< `equal` counts those before the first difference
  std::string difference = {};               ///< the first one, in short; "" if there is none
};

struct ComparisonReport {
  std::string title;
  std::string name_of_a, name_of_b;  ///< for example "a (sim)"
  std::vector<std::pair<std::string, std::string>> facts = {};
  std::string difference = {};                   ///< the first one of all ranks, in words; "" if there is none
  std::vector<ComparedObservation> around = {};  ///< up to the first difference, which is the last
  std::vector<ComparedRank> ranks = {};
  std::vector<double> losses = {};  ///< of rank 0 of run a, by step; NaN and infinities are allowed
};

/// Returns the page in UTF-8, without scripts or external resources. Equal reports give equal bytes.
std::string comparison_page(const ComparisonReport& report);

}  // namespace accel::sim
