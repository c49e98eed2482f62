#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

/// A simulated run for a person: one HTML page with everything in it, to open, to print, to send to a colleague.
///
///     RunReport report{.title = "fashion_mnist on 64 ranks", .facts = {{"ranks", "64"}, {"seed", "42"}}};
///     report.losses = {2.31, 1.87, 1.52};
///     std::ofstream("index.html") << report_page(report);
///
/// Thread rule: values; report_page from any thread.
namespace accel::sim {

/// How long a rank's mean step took, in seconds, in parts that do not overlap.
struct StepBreakdown {
  double compute = 0;
  double exposed_communication = 0;  ///< waiting for data to arrive after the last rank had come
  double straggler_wait = 0;         ///< waiting for the last rank to come
};

/// A run of the same program on a number of ranks.
struct ScalePoint {
  int ranks = 0;
  double step_seconds = 0;
  double efficiency = 0;  ///< 1 is ideal: N times the samples a second of one rank
  double exposed_communication_seconds = 0, straggler_seconds = 0;  ///< of a step
  double samples_per_second = 0;                                    ///< 0: not known
};

/// What all ranks together sent by one operation.
struct CommunicationVolume {
  std::string op;
  std::int64_t calls = 0, bytes = 0;
  double seconds = 0;
};

/// What is empty is said in one line instead of drawn.
struct RunReport {
  std::string title;
  std::vector<std::pair<std::string, std::string>>
      facts;                         ///< what was run: ranks, network, schedule, seed, the command, ...
  std::vector<double> losses;        ///< of rank 0, by step; may hold NaN and infinities
  std::vector<StepBreakdown> ranks;  ///< by rank, the mean over its steps
  std::vector<CommunicationVolume> volumes;
  std::vector<std::pair<std::string, std::int64_t>> memory;  ///< bytes by kind, of the rank that held most of it
  std::vector<ScalePoint> scaling;
  std::vector<std::string> faults;    ///< that were injected
  std::vector<std::string> findings;  ///< what deserves a look
  std::string diagnosis;              ///< why the run stopped; shown as written
  std::string timeline_file;          ///< the trace beside the page, by name
};

/// The page, in UTF-8: no script, nothing from elsewhere, pictures for wide and narrow screens, light and dark, with
/// the numbers behind each of them as a table. The same report is the same bytes. Throws ArgumentError that lists every
/// number that is negative or not finite (losses may be).
std::string report_page(const RunReport& report);

}  // namespace accel::sim
