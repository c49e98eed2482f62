#pragma once

#include <cstdint>
#include <vector>

/// Times of real Gloo all-reduces among processes of this machine.
///
///     const auto seconds = time_processes(/*num_ranks=*/2, /*repeats=*/5);  // [size][repeat], sizes as timed_sizes()
///
/// A call lasts until its last rank has ended; a repeat's time is the median of five batches' minima, every batch goes
/// through all sizes. Thread rule: one at a time.
namespace accel::programs {

struct TimedSize {
  std::int64_t bytes = 0;
  bool is_fitted = false;  ///< else held out
};

/// From 4 bytes to 16 MiB; the fitted ones a factor of 4 apart, the others between them.
std::vector<TimedSize> timed_sizes();

double median(std::vector<double> values);

/// Starts this program again for every rank, as `PROGRAM --worker --repeats N`. Throws Error with what the first failed
/// rank said.
std::vector<std::vector<double>> time_processes(int num_ranks, int repeats);

/// What such a rank does: rank 0 leaves the times where time_processes finds them.
void time_as_worker(int repeats);

}  // namespace accel::programs
