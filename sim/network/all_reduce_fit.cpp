// Fits the four costs of the ring model to measured times. Four parameters do not need a library: the normal
// equations are a 4 x 4 system, and the derivatives are taken numerically because the model is a maximum of
// pieces, not a formula.
#include "sim/network/all_reduce_fit.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <numeric>
#include <vector>

#include "reference/core/errors.hpp"
#include "sim/network/plan_timing.hpp"

namespace accel::sim {
namespace {

constexpr int kNumCosts = 4;
using Logs = std::array<double, kNumCosts>;  // logarithms of the costs, in the order of AllReduceCosts
using Row = std::array<double, kNumCosts>;
constexpr int kIterations = 300;
constexpr double kReach = 3;     // bound from the guess, a factor of 20: noise would drive costs to 0
constexpr double kNudge = 1e-6;  // step of a derivative; the model is linear between its kinks

// Costs are exponentials, so they stay positive whatever step the fit takes.
AllReduceCosts costs_of(const Logs& logs) {
  return {std::exp(logs[0]), std::exp(logs[1]), std::exp(logs[2]), std::exp(logs[3])};
}

// The starting point: the fastest call is half overhead and half latency, the largest is bound by its bytes,
// and adding bytes takes a tenth of the time of sending them.
Logs guess(std::span<const MeasuredAllReduce> measured) {
  const auto by_seconds = [](const auto& a, const auto& b) { return a.seconds < b.seconds; };
  const auto by_bytes = [](const auto& a, const auto& b) { return a.bytes < b.bytes; };
  const auto& fastest = *std::min_element(measured.begin(), measured.end(), by_seconds);
  const auto& largest = *std::max_element(measured.begin(), measured.end(), by_bytes);
  const double rounds = 2.0 * (fastest.num_ranks - 1);
  const double per_byte = largest.seconds / static_cast<double>(std::max<std::int64_t>(largest.bytes, 1));
  return {std::log(0.5 * fastest.seconds), std::log(0.5 * fastest.seconds / rounds), std::log(per_byte),
          std::log(0.1 * per_byte)};
}

// Logarithms of ratios: a size of 4 bytes counts as much as one of 16 MiB.
std::vector<double> residuals(const Logs& logs, std::span<const MeasuredAllReduce> measured) {
  std::vector<double> all;
  for (const auto& one : measured) {
    all.push_back(std::log(all_reduce_seconds(costs_of(logs), one.num_ranks, one.bytes) / one.seconds));
  }
  return all;
}

double sum_of_squares(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return sum;
}

std::vector<Row> derivatives(const Logs& logs, const std::vector<double>& at,
                             std::span<const MeasuredAllReduce> measured) {
  std::vector<Row> rows(at.size());
  for (int cost = 0; cost < kNumCosts; ++cost) {
    auto nudged = logs;
    nudged[cost] += kNudge;
    const auto there = residuals(nudged, measured);
    for (std::size_t row = 0; row < rows.size(); ++row) rows[row][cost] = (there[row] - at[row]) / kNudge;
  }
  return rows;
}

// Solves (J'J + damping I) step = -J'r by Gauss-Jordan elimination without pivoting: the matrix is positive
// definite. The step is clamped, because far from the minimum the linear model is wrong.
Logs find_step(const std::vector<Row>& rows, const std::vector<double>& values, double damping) {
  std::array<std::array<double, kNumCosts + 1>, kNumCosts> system{};
  for (int i = 0; i < kNumCosts; ++i) {
    for (std::size_t row = 0; row < rows.size(); ++row) {
      for (int j = 0; j < kNumCosts; ++j) system[i][j] += rows[row][i] * rows[row][j];
      system[i][kNumCosts] -= rows[row][i] * values[row];
    }
    system[i][i] += damping;
  }
  for (int pivot = 0; pivot < kNumCosts; ++pivot) {
    for (int i = 0; i < kNumCosts; ++i) {
      if (i == pivot) continue;
      const double factor = system[i][pivot] / system[pivot][pivot];
      for (int j = pivot; j <= kNumCosts; ++j) system[i][j] -= factor * system[pivot][j];
    }
  }
  Logs step;
  for (int i = 0; i < kNumCosts; ++i) step[i] = std::clamp(system[i][kNumCosts] / system[i][i], -2.0, 2.0);
  return step;
}

}  // namespace

// The closed form is exact here (all ranks start together, all pairs cost the same) and makes a fit fast.
double all_reduce_seconds(const AllReduceCosts& costs, int num_ranks, std::int64_t bytes) {
  const auto plan =
      plan_collective({.op = Collective::kAllReduce, .bytes = bytes, .num_ranks = num_ranks}, Library::kGloo);
  std::vector<PairCosts> of_round;
  const auto ends = run_plan(plan, std::vector<double>(num_ranks, costs.overhead_seconds),
                             {.reduce_seconds_per_byte = costs.reduce_seconds_per_byte,
                              .time_factor = size_factor(costs.size_factors, bytes),
                              .closed_form_ranks_min = 1},
                             [&](const Stage&, int, const std::vector<Message>& messages, double) {
                               of_round.assign(messages.size(), {costs.latency_seconds, costs.seconds_per_byte});
                               return std::span<const PairCosts>(of_round);
                             });
  return ends[0];
}

namespace {

// Returns for every size by what factor the messages took longer than the costs predict: the geometric mean
// over the numbers of ranks. The overhead is excluded, because the network model does not scale it.
std::vector<SizeFactor> find_size_factors(const AllReduceCosts& costs, std::span<const MeasuredAllReduce> measured) {
  constexpr double kLeast = 0.01;  // used if the overhead alone exceeds the measured time
  std::map<std::int64_t, std::vector<double>> logs;
  for (const auto& one : measured) {
    const double messages = all_reduce_seconds(costs, one.num_ranks, one.bytes) - costs.overhead_seconds;
    logs[one.bytes].push_back(std::log(std::max(kLeast, (one.seconds - costs.overhead_seconds) / messages)));
  }
  std::vector<SizeFactor> factors;
  for (const auto& [bytes, of_size] : logs) {
    factors.push_back(
        {bytes, std::exp(std::accumulate(of_size.begin(), of_size.end(), 0.0) / static_cast<double>(of_size.size()))});
  }
  return factors;
}

}  // namespace

AllReduceCosts fit_all_reduce(std::span<const MeasuredAllReduce> measured) {
  check_argument(!measured.empty(), "fit_all_reduce: got no measurements; expected at least one");
  for (const auto& one : measured) {
    check_argument(
        one.seconds > 0 && one.num_ranks >= 2,
        "fit_all_reduce: got an all-reduce of {} ranks that took {} s; expected at least 2 ranks and a positive time",
        one.num_ranks, one.seconds);
  }
  const auto guessed = guess(measured);
  auto logs = guessed;
  auto errors = residuals(logs, measured);
  // Levenberg-Marquardt: a better point is accepted and the damping reduced; a worse one is rejected and the
  // damping raised. The loop ends when no step, however small, improves the fit.
  double damping = 1;
  for (int iteration = 0; iteration < kIterations && damping < 1e12; ++iteration) {
    const auto step = find_step(derivatives(logs, errors, measured), errors, damping);
    auto next = logs;
    for (int cost = 0; cost < kNumCosts; ++cost) {
      next[cost] = std::clamp(logs[cost] + step[cost], guessed[cost] - kReach, guessed[cost] + kReach);
    }
    auto next_errors = residuals(next, measured);
    const bool is_better = sum_of_squares(next_errors) < sum_of_squares(errors);
    damping = is_better ? std::max(0.3 * damping, 1e-9) : 4 * damping;
    if (!is_better) continue;
    logs = next;
    errors = std::move(next_errors);
  }
  auto costs = costs_of(logs);
  costs.size_factors = find_size_factors(costs, measured);
  return costs;
}

}  // namespace accel::sim
