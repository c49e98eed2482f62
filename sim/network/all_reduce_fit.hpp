#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/network/network_spec.hpp"

/// Finds the costs for which the network model of an all-reduce comes closest to measured times.
///
///     const auto costs = fit_all_reduce(measured);
///     const double seconds = all_reduce_seconds(costs, /*num_ranks=*/4, /*bytes=*/1 << 20);
///
/// Uses Levenberg-Marquardt on the logarithms of costs and times, so errors are relative and no cost is negative. A
/// factor per measured size then absorbs what four costs cannot express. Costs that the measurements do not separate
/// stay near a plain guess, for example overhead and latency with only two ranks. Thread rule: pure.
namespace accel::sim {

/// The costs of an all-reduce between ranks that have a separate link to each other rank.
struct AllReduceCosts {
  double overhead_seconds = 0;
  double latency_seconds = 0;
  double seconds_per_byte = 0;
  double reduce_seconds_per_byte = 0;
  std::vector<SizeFactor> size_factors = {};
};

struct MeasuredAllReduce {
  int num_ranks = 2;
  std::int64_t bytes = 0;  ///< of float32 elements
  double seconds = 0;
};

/// Returns the time of Gloo's ring from the call of ranks that are ready at the same time until the last has ended.
double all_reduce_seconds(const AllReduceCosts& costs, int num_ranks, std::int64_t bytes);

/// Throws ArgumentError without measurements, or for a time that is not positive.
AllReduceCosts fit_all_reduce(std::span<const MeasuredAllReduce> measured);

}  // namespace accel::sim
