#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/programs/equivalence/equivalence_case.hpp"

/// What a comparison of two backends covered, as a file that `./dev report` reads.
namespace accel::programs {

using Dimensions = std::vector<std::pair<std::string, std::string>>;
/// The dimensions of a case with its values, such as {"num_workers", "2"}. Each different operation has an entry.
Dimensions dimensions_of(const EquivalenceCase& one);

/// Which values of two dimensions occurred together.
///
/// Thread rule: a value.
class PairCoverage {
 public:
  void count(const Dimensions& dimensions);
  [[nodiscard]] std::int64_t num_pairs() const { return static_cast<std::int64_t>(pairs_.size()); }
  /// The pairs that the other one lacks, such as "source stream, ranks 1".
  [[nodiscard]] std::vector<std::string> missing_in(const PairCoverage& other) const;

 private:
  using Pair = std::pair<int, int>;  // smaller id first
  [[nodiscard]] bool has(const std::string& one, const std::string& other) const;

  std::map<std::string, int> ids_;  // of a value, such as "num_workers 2"
  std::vector<std::string> values_;
  std::set<Pair> pairs_;
};

/// The pairs that a law's cases can have: those of 2,000 cases, drawn without running them.
PairCoverage possible_pairs(const std::string& law, RankLimits limits);

/// The cases of one law on which two sides were compared.
///
///     EquivalenceRecord record{.law = "sharding", .left = "simulated, parallel", .right = "Gloo threads"};
///     record.count(one);
///     write_record("build/artifacts/equivalence/" + file_name(record), record);
///
/// Thread rule: a value; write_record from any thread.
struct EquivalenceRecord {
  std::string law;
  std::string left, right;  ///< the two sides, such as "Gloo processes over TCP"
  std::string command;      ///< repeats the comparison
  std::uint64_t seed = 0;
  int cases = 0;                                                      ///< that were compared
  int differences = 0;                                                ///< a comparison ends with the first one
  std::map<std::tuple<int, std::string, std::string>, int> of_cells;  ///< cases by ranks, dimension and value

  PairCoverage pairs = {};
  RankLimits limits = {};

  void count(const EquivalenceCase& one);
  /// One line: how many pairs of values the cases had, of those that are possible.
  [[nodiscard]] std::string coverage() const;
};

/// The name depends on the law and the two sides only, so that a later run replaces the file.
std::string file_name(const EquivalenceRecord& record);

/// Writes the record as JSON, atomically, with the current date and the commit that ACCEL_COMMIT names. Throws
/// FileError.
void write_record(const std::string& path, const EquivalenceRecord& record);

}  // namespace accel::programs
