#pragma once

#include <string>
#include <vector>

#include "bench/statistics.hpp"

/// Compares the rows of two commits. Pure functions; bench_against takes the samples.
///
///     const auto rows = compare({{.name = "step/mlp", .blocks = blocks}});
///     std::cout << table(rows);
///     return has_regression(rows) ? 1 : 0;
namespace accel::bench {

// Note [Blocks]
// The speed of a cloud machine drifts by 20 to 30 % within an hour, far more than the slowdowns to find. So the samples
// of both commits are taken alternately within a few seconds, in the order A B B A, which cancels a linear drift. These
// four samples are a block, and only samples of the same block are compared: U is computed per block and summed. A
// Mann-Whitney U test over all samples would lose the difference in the drift. One over samples that were divided by
// their block's mean would reject too often, because such samples are not independent: with one pair per block, its
// variance is twice the assumed one.
//
// Each sample comes from a fresh process. The addresses that a process gets by chance change its speed by a percent or
// two for as long as it lives, so further samples of the same process are not independent.
//
// The test finds any stable difference, also one of 0.5 % from another alignment of the code, which no one would call
// a regression. A regression therefore also needs a ratio beyond kNoise.

inline constexpr double kLevel = 0.01;  ///< probability of a false "slower" or "faster" among all rows of a run
inline constexpr double kNoise = 0.03;  ///< smaller differences are not reported

/// The samples of one measurement under two commits; smaller values are better.
struct RowSamples {
  std::string name;
  std::string unit = "s";  ///< "s" or "bytes"
  std::vector<Block> blocks;
};

enum class Verdict { kEqual, kSlower, kFaster };

struct RowComparison {
  std::string name, unit;
  double before = 0, after = 0;  ///< medians of all samples
  double ratio = 1;              ///< median over the blocks of after / before
  double p = 1;                  ///< Mann-Whitney U per block, corrected by Holm's method for the number of rows
  Verdict verdict = Verdict::kEqual;
};

std::vector<RowComparison> compare(const std::vector<RowSamples>& rows);
bool has_regression(const std::vector<RowComparison>& rows);
std::string to_string(Verdict verdict);

/// One line per row: name, medians, ratio, p and verdict.
std::string table(const std::vector<RowComparison>& rows);

/// Formats a value with a fitting unit, for example "1.25 ms" or "3.1 MB".
std::string with_unit(double value, const std::string& unit);

}  // namespace accel::bench
