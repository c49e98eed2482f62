#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Measures collectives among processes of this machine.
///
///     const auto seconds = time_calls({{.bytes = 4}, {.bytes = 1 << 20}}, {.num_ranks = 2});  // [call][repeat]
///
/// A call lasts until its last rank has ended. The time of a repeat is the median of the minima of five batches; every
/// batch goes through all calls. Thread rule: one call at a time.
namespace accel::programs {

struct TimedCall {
  std::int64_t bytes = 0;  ///< of the result of each rank: multiples of 4 bytes, gathered ones also of the ranks
  bool gathers = false;    ///< an all-gather; false: an all-reduce
};

struct TimingOptions {
  int num_ranks = 2;
  int repeats = 5;
  std::string backend = "gloo";  ///< or "nccl": one GPU per rank
};

double median(std::vector<double> values);

/// Starts this program once per rank, as `PROGRAM --worker CALLS --backend NAME --repeats N`. Throws Error with the
/// message of the first rank that failed.
std::vector<std::vector<double>> time_calls(const std::vector<TimedCall>& calls, const TimingOptions& options);

/// Runs one such rank; rank 0 passes the times to time_calls. Throws ConfigError for other texts than those of
/// time_calls.
void run_timing_worker(const std::string& calls, const std::string& backend, int repeats);

}  // namespace accel::programs
