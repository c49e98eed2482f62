#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim/programs/check/loader_pass.hpp"
#include "sim/programs/check/program_run.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::programs {

struct CheckNetwork {
  std::string name, text;  ///< the text of a network file
};

/// The runs of a program under check. Each is made when a check asks for it first. Thread rule: one thread.
class Runs {
 public:
  Runs(CheckedProgram program, int num_ranks, bool is_quick, CheckNetwork network)
      : program_(std::move(program)), num_ranks_(num_ranks), is_quick_(is_quick), network_(std::move(network)) {}

  [[nodiscard]] const CheckedProgram& program() const { return program_; }
  [[nodiscard]] int num_ranks() const { return num_ranks_; }
  [[nodiscard]] bool is_quick() const { return is_quick_; }

  /// For predictions.
  [[nodiscard]] const CheckNetwork& network() const { return network_; }

  const ProgramRun& get(const RunRequest& request);
  /// On all ranks; throws CannotJudge unless it ended well and was observed.
  const ProgramRun& base();
  /// The passes of the loaders of the base run, by rank.
  const std::vector<std::vector<LoaderPass>>& passes();
  /// An empty folder that runs share.
  std::string shared_folder(const std::string& name);
  /// A number of ranks that does not divide the training data, other than num_ranks().
  int uneven_ranks();
  /// A line that repeats a run.
  [[nodiscard]] std::string replay(const RunRequest& request) const { return command_line(program_, request); }

 private:
  CheckedProgram program_;
  int num_ranks_;
  bool is_quick_;
  CheckNetwork network_;
  TemporaryFolder folder_;
  std::map<RunRequest, ProgramRun> runs_;
  std::vector<std::vector<LoaderPass>> passes_;
};

}  // namespace accel::programs
