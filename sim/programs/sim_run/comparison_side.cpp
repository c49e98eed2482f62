// Runs one side of `sim-run compare`. Every side is a process: sim-run with the options of the side, which records what
// its ranks compute, or a script of properties/oracle. Both sides therefore run exactly what a user would run.
#include "sim/programs/sim_run/comparison_side.hpp"

#include <filesystem>
#include <fstream>

#include "reference/config/environment.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/files/files.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

// The script that runs an experiment under Python's Accelerate. It belongs to the source tree around build/PRESET/bin;
// an installed sim-run has none.
std::optional<fs::path> oracle_script() {
  for (auto folder = fs::path(own_path()).parent_path(); folder != folder.root_path(); folder = folder.parent_path()) {
    if (auto script = folder / "properties/oracle/trace.py"; fs::is_regular_file(script)) return script;
  }
  return std::nullopt;
}

// `./dev setup --oracle` installs the environment below the cache folder of `./dev`.
fs::path oracle_folder() {
  if (const auto cache = environment("ACCEL_CACHE_DIR")) return fs::path(*cache) / "oracle";
  const auto caches = environment("XDG_CACHE_HOME").value_or(expand_home("~/.cache"));
  return fs::path(caches) / "accel" / "oracle";
}

std::vector<std::string> python_command(const ComparedProgram& program, const ComparisonSide& side) {
  std::vector<std::string> command{(oracle_folder() / "bin/python").string(), oracle_script().value().string(),
                                   "--ranks", std::to_string(program.num_ranks)};
  for (const auto& text : side.overrides) command.insert(command.end(), {"--set", text});
  command.push_back(program.experiment);
  return command;
}

std::vector<std::string> sim_run_command(const ComparedProgram& program, const ComparisonSide& side,
                                         const std::string& folder) {
  std::vector<std::string> command{own_path(),  "--quiet",   "--ranks", std::to_string(program.num_ranks),
                                   "--backend", side.backend};
  if (program.uses_traces) {
    command.insert(command.end(), {"--trace", folder + "/trace.jsonl"});
  } else {
    command.insert(command.end(), {"--record", folder});
    if (program.tensors) command.emplace_back("--record-tensors");
    if (program.values) command.emplace_back("--record-values");
    if (program.same_work) command.emplace_back("--record-same-work");
    if (program.map_cuda && side.backend == "sim") command.emplace_back("--map-cuda");
    if (program.max_steps) command.insert(command.end(), {"--record-steps", std::to_string(*program.max_steps)});
  }
  for (const auto& text : side.overrides) command.insert(command.end(), {"--set", text});
  if (program.command.empty()) {
    command.push_back(program.experiment);
  } else {
    command.emplace_back("--");
    command.insert(command.end(), program.command.begin(), program.command.end());
  }
  if (!program.variables.empty()) {
    command.insert(command.begin(), program.variables.begin(), program.variables.end());
    command.insert(command.begin(), "/usr/bin/env");
  }
  return command;
}

}  // namespace

std::string problem_of_python() {
  if (!oracle_script()) {
    return fmt::format(
        "{} is not inside a source tree with properties/oracle; run the sim-run that `./dev build` writes to "
        "build/release/bin",
        own_path());
  }
  if (!fs::exists(oracle_folder() / ".complete")) {
    return fmt::format(
        "Python's Accelerate is not installed in {}; install it with `./dev setup --oracle`, which downloads 3 GB, or "
        "set "
        "ACCEL_CACHE_DIR to the folder that holds it",
        oracle_folder().string());
  }
  return "";
}

SideRun run_side(const ComparedProgram& program, const ComparisonSide& side, const std::string& folder) {
  fs::create_directory(folder);
  const bool is_python = side.backend == "python";
  const auto trace = folder + "/trace.jsonl", output = is_python ? trace : folder + "/output",
             error = folder + "/error";
  const auto command = is_python ? python_command(program, side) : sim_run_command(program, side, folder);
  SideRun run{.exit_code = run_child({.command = command}, output, error).exit_code};
  if (run.exit_code != kSuccess) run.error = accel::read_text(error);
  if (program.values) return run;  // read by the caller
  run.recording = program.uses_traces ? recording_of_trace(lines_in(trace), program.num_ranks)
                                      : read_recording(folder, program.num_ranks);
  return run;
}

}  // namespace accel::programs
