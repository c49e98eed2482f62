#include "bench/statistics.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <numeric>
#include <utility>

#include "reference/core/errors.hpp"

namespace accel::bench {
namespace {

double pairs_of(const Block& block) {
  return static_cast<double>(block.before.size()) * static_cast<double>(block.after.size());
}

double u_of(const Block& block) {
  double u = 0;
  for (const double after : block.after) {
    for (const double before : block.before) u += after > before ? 1 : after == before ? 0.5 : 0;
  }
  return u;
}

// The sum of t^3 - t over groups of t equal values; 0 without ties.
double ties_of(const Block& block) {
  std::map<double, double> counts;
  for (const double value : block.before) ++counts[value];
  for (const double value : block.after) ++counts[value];
  double sum = 0;
  for (const auto& [value, count] : counts) sum += count * count * count - count;
  return sum;
}

// Variance of U if both sides have the same distribution, corrected for ties.
double variance_of(const Block& block) {
  const auto n = static_cast<double>(block.before.size() + block.after.size());
  return pairs_of(block) / 12 * (n + 1 - ties_of(block) / (n * (n - 1)));
}

// probabilities[u]: that U is u for `m` and `n` samples. The largest sample belongs to one side, which leaves a smaller
// problem: the recursion of Mann and Whitney (1947), for all smaller n at once.
std::vector<double> probabilities_of_u(std::size_t m, std::size_t n) {
  std::vector<std::vector<double>> of_n(n + 1, std::vector<double>(1, 1.0));  // of_n[j]: for i and j samples; now i = 0
  for (std::size_t i = 1; i <= m; ++i) {
    of_n[0] = {1.0};
    for (std::size_t j = 1; j <= n; ++j) {
      std::vector<double> next(i * j + 1, 0.0);
      const double share = static_cast<double>(i) / static_cast<double>(i + j);
      for (std::size_t u = 0; u < of_n[j].size(); ++u) next[u + j] += share * of_n[j][u];
      for (std::size_t u = 0; u < of_n[j - 1].size(); ++u) next[u] += (1 - share) * of_n[j - 1][u];
      of_n[j] = std::move(next);
    }
  }
  return of_n[n];
}

std::vector<double> convolve(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> sum(a.size() + b.size() - 1, 0.0);
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < b.size(); ++j) sum[i + j] += a[i] * b[j];
  }
  return sum;
}

double exact_p(const std::vector<Block>& blocks, double u) {
  std::vector<double> probabilities{1.0};
  for (const auto& block : blocks)
    probabilities = convolve(probabilities, probabilities_of_u(block.before.size(), block.after.size()));
  const auto at = probabilities.begin() + static_cast<std::ptrdiff_t>(u);
  const double below = std::accumulate(probabilities.begin(), at + 1, 0.0);
  const double above = std::accumulate(at, probabilities.end(), 0.0);
  return std::min(1.0, 2 * std::min(below, above));
}

double approximate_p(double distance, double variance) {
  if (variance <= 0) return 1;  // all values are equal
  const double z = (distance - 0.5) / std::sqrt(variance);
  return std::min(1.0, std::erfc(z / std::sqrt(2.0)));
}

}  // namespace

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

MannWhitney mann_whitney(const std::vector<Block>& blocks) {
  double pairs = 0, variance = 0, ties = 0;
  MannWhitney result;
  for (const auto& block : blocks) {
    check_argument(!block.before.empty() && !block.after.empty(),
                   "mann_whitney: a block has {} and {} samples; expected at least one on each side",
                   block.before.size(), block.after.size());
    pairs += pairs_of(block);
    variance += variance_of(block);
    ties += ties_of(block);
    result.u += u_of(block);
  }
  result.exact = ties == 0 && pairs <= kExactPairs;
  result.p = result.exact ? exact_p(blocks, result.u) : approximate_p(std::abs(result.u - pairs / 2), variance);
  return result;
}

std::vector<double> holm(const std::vector<double>& p) {
  std::vector<std::size_t> order(p.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](auto a, auto b) { return p[a] < p[b]; });
  std::vector<double> adjusted(p.size());
  double largest = 0;
  for (std::size_t rank = 0; rank < order.size(); ++rank) {
    const auto tests_left = static_cast<double>(p.size() - rank);
    largest = std::max(largest, std::min(1.0, tests_left * p[order[rank]]));
    adjusted[order[rank]] = largest;
  }
  return adjusted;
}

}  // namespace accel::bench
