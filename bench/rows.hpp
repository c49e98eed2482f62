#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "bench/median.hpp"

namespace accel::bench {

/// The traffic of a collective as nccl-tests defines it. It gives two bandwidths: the algorithm bandwidth is
/// bytes / time; the bus bandwidth is `bus_factor` times as large and does not depend on the number of ranks.
struct Traffic {
  double bytes = 0, bus_factor = 1;
};

/// One measurement of a benchmark program; smaller values are better.
struct Row {
  std::string name;                 ///< "step/mlp/accelerator", for example
  std::function<double()> measure;  ///< takes one sample, after a warm-up
  std::string unit = "s";           ///< "s" or "bytes"
  std::string beside = "";          ///< the row of what a user would choose instead, in the same program
  bool compared = false;            ///< part of ./dev bench --against: a sample takes at most about a second
  std::optional<Traffic> traffic = std::nullopt;
};

using Rows = std::vector<Row>;

/// A row with its samples.
struct MeasuredRow {
  Row row;
  std::vector<double> samples;
};

/// Passes options to Google Benchmark. Returns false, with a message on standard error, if it does not recognize one.
bool read_benchmark_options(const std::string& program, int repetitions, const std::vector<std::string>& options);

/// Measures the rows as repetitions of Google Benchmark. Repetitions of all rows are interleaved, so that a slow phase
/// of the machine affects rows that are compared with each other alike. Returns the rows that the filter selects.
/// Throws Error if a row cannot be measured.
std::vector<MeasuredRow> measure_rows(const Rows& rows);

/// One line per row: median, range of the middle half of the samples, bandwidths, and the ratio to the row `beside`.
std::string table(const std::vector<MeasuredRow>& rows);
nlohmann::ordered_json to_json(const std::vector<MeasuredRow>& rows);

/// Measures `batches` batches of `calls` calls each and returns the seconds of one call in the median batch. A short
/// interruption by other programs affects few batches.
template <typename Call>
double median_seconds(int batches, int calls, const Call& call) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> seconds;
  for (int batch = 0; batch < batches; ++batch) {
    const auto start = Clock::now();
    for (int number = 0; number < calls; ++number) call();
    seconds.push_back(std::chrono::duration<double>(Clock::now() - start).count() / calls);
  }
  return median(seconds);
}

/// The seconds of one call.
template <typename Call>
double seconds_of(const Call& call) {
  return median_seconds(1, 1, call);
}

}  // namespace accel::bench
