#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "sim/programs/equivalence/equivalence_case.hpp"

/// What a comparison of two backends covered, as a file that `./dev report` reads.
namespace accel::programs {

/// The dimensions of a case with its values, such as {"num_workers", "2"}. One entry per different operation.
std::vector<std::pair<std::string, std::string>> dimensions_of(const EquivalenceCase& one);

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

  void count(const EquivalenceCase& one);
};

/// The name depends on the law and the two sides only, so that a later run replaces the file.
std::string file_name(const EquivalenceRecord& record);

/// Writes the record as JSON with the current date and the commit of ACCEL_COMMIT, atomically. Throws FileError.
void write_record(const std::string& path, const EquivalenceRecord& record);

}  // namespace accel::programs
