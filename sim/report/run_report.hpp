#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// The results of a simulated run as one self-contained HTML page, to open, print or send.
///
///     RunReport report{.title = "fashion_mnist on 64 ranks", .facts = {{"ranks", "64"}, {"seed", "42"}}};
///     report.losses = {2.31, 1.87, 1.52};
///     std::ofstream("index.html") << report_page(report);
///
/// Thread rule: values; report_page from any thread.
namespace accel::sim {

/// The mean step of a rank, in seconds, in parts that do not overlap.
struct StepBreakdown {
  double compute = 0;
  double exposed_communication = 0;  ///< waiting for data after the last rank had arrived
  double straggler_wait = 0;         ///< waiting for the last rank to arrive
};

/// A run of the same program on another number of ranks.
struct ScalePoint {
  int ranks = 0;
  double step_seconds = 0;
  double efficiency = 0;  ///< 1 is ideal: N times the samples per second of one rank
  double exposed_communication_seconds = 0, straggler_seconds = 0;  ///< per step
  double samples_per_second = 0;                                    ///< 0: unknown
};

/// The amount that all ranks together sent with one operation.
struct CommunicationVolume {
  std::string op;
  std::int64_t calls = 0, bytes = 0;
  double seconds = 0;
};

/// The contents of the page. A section without data is one line instead of a chart.
struct RunReport {
  std::string title;
  std::vector<std::pair<std::string, std::string>>
      facts;                         ///< name and value: ranks, network, schedule, seed, the command, ...
  std::vector<double> losses;        ///< of rank 0, by step; NaN and infinities are allowed
  std::vector<StepBreakdown> ranks;  ///< by rank, the mean over its steps
  std::vector<CommunicationVolume> volumes;
  std::vector<std::pair<std::string, std::int64_t>> memory;  ///< bytes by kind, on the rank that held the most
  std::vector<ScalePoint> scaling;
  std::vector<std::string> faults;    ///< injected faults
  std::vector<std::string> findings;  ///< problems that did not stop the run
  std::string diagnosis;              ///< why the run stopped; shown verbatim
  std::string timeline_file;          ///< file name of the trace next to the page
};

/// Returns the page in UTF-8: without scripts or external resources, with charts for wide and narrow screens and for
/// light and dark mode, and the numbers of each chart as a table. Equal reports give equal bytes. Throws ArgumentError
/// that lists every number that is negative or not finite (losses may be).
std::string report_page(const RunReport& report);

}  // namespace accel::sim
