#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sim/network/network_spec.hpp"

/// Finds the costs with which the network's model of an all-reduce comes nearest to measured times.
///
///     const auto costs = fit_all_reduce(measured);
///     const double seconds = all_reduce_seconds(costs, /*num_ranks=*/4, /*bytes=*/1 << 20);
///
/// By Levenberg-Marquardt on the logarithms of costs and times, so errors are relative and no cost is negative; then a
/// factor for every measured size takes up what four costs cannot tell. What the measurements do not tell apart stays
/// near a plain guess: with two ranks alone, say, overhead and latency. Thread rule: pure.
namespace accel::sim {

/// Of ranks that all have a link of their own to each other.
struct AllReduceCosts {
  double overhead_seconds = 0;
  double latency_seconds = 0;
  double seconds_per_byte = 0;
  double reduce_seconds_per_byte = 0;
  std::vector<SizeFactor> size_factors = {};
};

struct MeasuredAllReduce {
  int num_ranks = 2;
  std::int64_t bytes = 0;  ///< of float32
  double seconds = 0;
};

/// Of Gloo's ring, from the call of ranks that are ready together until the last has ended.
double all_reduce_seconds(const AllReduceCosts& costs, int num_ranks, std::int64_t bytes);

/// Throws ArgumentError without measurements, or for a time that is not positive.
AllReduceCosts fit_all_reduce(std::span<const MeasuredAllReduce> measured);

}  // namespace accel::sim
