#pragma once

#include <vector>

/// Statistics of samples: median, Mann-Whitney U test, Holm's correction. Pure functions.
///
///     const auto test = mann_whitney({{.before = {5, 6, 7}, .after = {8, 9, 10}}});
///     if (test.p < 0.05) ...
namespace accel::bench {

/// Returns the middle value, or the mean of the two middle values. `values` must not be empty.
double median(std::vector<double> values);

/// Samples of two sides that were taken under equal conditions.
struct Block {
  std::vector<double> before, after;
};

struct MannWhitney {
  double u = 0;        ///< pairs in which `after` is larger, summed over the blocks; a tie counts one half
  double p = 1;        ///< two-sided
  bool exact = false;  ///< `p` is from the exact distribution of U, otherwise from the normal approximation
};

/// Tests whether `before` and `after` have the same distribution within each block. For one block this is the
/// Mann-Whitney U test, as scipy.stats.mannwhitneyu computes it. For several blocks U is summed, which is van Elteren's
/// stratified test for blocks of equal sizes: only samples of the same block are compared with each other.
///
/// Exact for at most kExactPairs pairs without ties; otherwise the normal approximation with the correction for ties
/// and for continuity. Throws ArgumentError if a block lacks samples of one side.
MannWhitney mann_whitney(const std::vector<Block>& blocks);
inline constexpr double kExactPairs = 10'000;

/// Adjusts the p values of several tests, so that the probability of any false rejection is at most the level at which
/// they are compared (Holm 1979). Returns them in the order of `p`.
std::vector<double> holm(const std::vector<double>& p);

}  // namespace accel::bench
