#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/diagnosis/diagnosis.hpp"
#include "sim/programs/comparison/recording.hpp"
#include "sim/report/run_report.hpp"

namespace accel::programs {

/// A program under check, and where its runs work.
struct CheckedProgram {
  std::string experiment = {};
  std::vector<std::string> command = {};
  std::vector<std::string> options = {};             ///< of sim-run, for every run
  std::vector<std::string> one_rank_arguments = {};  ///< of the command's run on one rank
  std::vector<std::string> resume_arguments = {};    ///< of a run that starts again
  bool in_place = false;  ///< run in this process's working folder, else each in an empty one
};

/// What differs from run to run.
struct RunRequest {
  int ranks = 1;
  bool same_work = false;                      ///< see RecordOptions
  std::int64_t seed = 0;                       ///< see RecordOptions
  std::optional<std::uint64_t> schedule = {};  ///< the seed of a random schedule; none: ranks run in parallel
  std::string disturb = {};                    ///< see RecordOptions
  bool continues = false;                      ///< starts again in the folder of an interrupted run
  std::optional<std::int64_t> max_steps = {};  ///< ends after that many micro-batches
  std::string network = {};                    ///< the text of a network file
  std::string faults = {};                     ///< the text of a fault file
  std::string folder = {};                     ///< to work in; "": an empty one
  bool processes = false;                      ///< ranks of a program that is no Python program are processes, too
  std::string report = {};                     ///< folder of its page and its timeline; "": none

  friend auto operator<=>(const RunRequest&, const RunRequest&) = default;
};

/// A run that has ended.
struct ProgramRun {
  RunRequest request = {};
  int exit_code = 0;
  bool is_late = false;  ///< ended because it took too long
  double seconds = 0;
  std::string error = {};  ///< its standard error
  std::optional<Diagnosis> diagnosis = {};
  Recording recording = {};  ///< by rank
  /// On a network. None: it made fewer than two optimizer steps.
  std::optional<sim::ScalePoint> prediction = {};
  Recording draws = {};  ///< by rank: of the workers of its loaders

  [[nodiscard]] bool has_ended_well() const { return exit_code == 0 && !is_late; }
};

/// Runs the program once, by sim-run. `folder`: for its files; it exists.
ProgramRun run_program(const CheckedProgram& program, const RunRequest& request, const std::string& folder);

/// The file of the timeline of a run with this report.
std::string timeline_in(const std::string& report);

/// What the program computes: without what may differ between equal runs, such as a time that is printed.
Recording computed(const Recording& recording);

/// The command line of such a run, for a person to repeat.
std::string command_line(const CheckedProgram& program, const RunRequest& request);

/// Why the run failed, in one line.
std::string failure_of(const ProgramRun& run);
/// The line of the program that the failure names; "": none.
std::string place_of_failure(const ProgramRun& run);

}  // namespace accel::programs
