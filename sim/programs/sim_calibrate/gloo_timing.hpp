#pragma once

#include <cstdint>
#include <vector>

/// Measures real Gloo all-reduces among processes of this machine.
///
///     const auto seconds = time_all_reduces(/*num_ranks=*/2, /*repeats=*/5);  // [size][repeat], of timed_sizes()
///
/// A call lasts until its last rank has ended. The time of a repeat is the median of the minima of five batches; every
/// batch goes through all sizes. Thread rule: one call at a time.
namespace accel::programs {

struct TimedSize {
  std::int64_t bytes = 0;
  bool is_fitted = false;  ///< false: held out, to judge the fit
};

/// Returns sizes from 4 bytes to 16 MiB. From 1 KiB the fitted ones are a factor of 4 apart, with the held-out ones
/// between them.
std::vector<TimedSize> timed_sizes();

double median(std::vector<double> values);

/// Starts this program once per rank, as `PROGRAM --worker --repeats N`. Throws Error with the message of the first
/// rank that failed.
std::vector<std::vector<double>> time_all_reduces(int num_ranks, int repeats);

/// Runs one such rank; rank 0 passes the times to time_all_reduces.
void run_timing_worker(int repeats);

}  // namespace accel::programs
