#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/programs/layouts/disagreement.hpp"
#include "sim/programs/sim_run/explore_target.hpp"

namespace accel::programs {

/// A run on a mesh beside that on one rank.
struct LayoutComparison {
  std::optional<Disagreement> disagreement = {};
  std::vector<std::string> not_compared = {};  ///< what, and why
};

using LayoutComparer = std::function<LayoutComparison(const std::string& mesh, const ParallelismConfig& layout)>;

/// What the commands do with experiment files, and with what programs in C++ have recorded.
struct ExperimentFiles {
  /// Throws ConfigError if the file with these overrides is not an experiment of that many ranks.
  std::function<void(const std::string& file, const std::vector<std::string>& overrides, int num_ranks)> check;
  /// Explores the experiment.
  std::function<std::unique_ptr<ExploreTarget>(std::string file, std::vector<std::string> overrides,
                                               std::string faults_file)>
      make_target;
  /// The overrides under which `prove` runs the experiment on one rank and on meshes of that many.
  std::function<std::vector<std::string>(const std::string& file, const std::vector<std::string>& overrides,
                                         int num_ranks, std::int64_t max_steps)>
      overrides_of_proof;
  /// Reads the recording of one C++ rank in folder `one`, with which those in other folders are compared. Null:
  /// unavailable.
  std::function<LayoutComparer(const std::string& one)> compare_with;
};

/// Runs the command that the first argument names, or the program after `--`, if sim-run can do it without LibTorch.
/// Returns its exit code, nullopt for all others. Throws ConfigError for wrong usage.
std::optional<int> run_program_command(int argc, char** argv, const ExperimentFiles& experiments);

/// `sim-run compare --a BACKEND --b BACKEND [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program on two
/// backends and prints where they diverge first. Returns the exit code: 0 if they are equal, 1 if not.
int compare_main(int argc, char** argv, const ExperimentFiles& experiments);

/// `sim-run explore --schedules N [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program under many
/// schedules and shrinks the first that fails or computes a different result. Returns the exit code: 0 if none was
/// found.
int explore_main(int argc, char** argv, const ExperimentFiles& experiments);

/// `sim-run check [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program several times and judges if its
/// distributed training is right. Returns the exit code: 0 if no check failed.
int check_main(int argc, char** argv, const ExperimentFiles& experiments);

/// `sim-run prove --ranks N [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: runs a program under layouts of a mesh
/// and on one rank, and prints the first tensor that differs. Returns the exit code: 0 if all layouts are equal, 1 if
/// not.
int prove_main(int argc, char** argv, const ExperimentFiles& experiments);

/// `sim-run layouts --ranks N --network FILE [options] EXPERIMENT.yaml | -- PROGRAM [ARGS...]`: predicts step time and
/// memory per rank under every layout of a mesh. Returns the exit code: 0 if a layout fits, 1 if none does.
int layouts_main(int argc, char** argv);

/// `sim-run pipeline --schedule NAME|FILE.csv [options]`: prints a pipeline schedule and proves it. Returns the exit
/// code: 0 if it is complete and free of deadlock, 1 if not.
int pipeline_main(int argc, char** argv);

/// `sim-run predict RUNS.yaml [--hardware FILE] [--json]`: predicts the steps of described training runs. Returns the
/// exit code: 0 if all were computed, 1 with --json if not. Throws ConfigError without --json.
int predict_main(int argc, char** argv);

/// Whether a file describes training runs, as opposed to an experiment.
bool describes_runs(const std::string& file);

/// `sim-run layouts RUNS.yaml [options]`: the fastest layouts of described training runs. Returns the exit code: 0 if
/// each run has one that fits, 1 if not.
int layout_search_main(int argc, char** argv);

/// `sim-run plan`: answers the requests of a file, or one request made of flags. `argv[0]` is "plan". Returns the exit
/// code; throws ConfigError for wrong usage.
int plan_main(int argc, char** argv);

}  // namespace accel::programs
