// Every run is a process, sim-run with the options of the run, so that it is what a user would run.
#include "sim/programs/check/program_run.hpp"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "reference/config/environment.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/diagnosis/diagnosis_json.hpp"
#include "reference/files/files.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/processes/python_program.hpp"
#include "sim/programs/processes/supervisor.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/rehearsal/report_run.hpp"

namespace accel::programs {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kLimit{600};  // of one run

// A word that names a file of this folder must name it from the run's folder, too.
std::string absolute_word(const std::string& word) {
  const auto equals = word.starts_with("-") ? word.find('=') : std::string::npos;
  if (equals != std::string::npos) return word.substr(0, equals + 1) + absolute_word(word.substr(equals + 1));
  std::error_code unknown;
  const bool names_file =
      fs::is_regular_file(word, unknown) || (word.find('/') != std::string::npos && fs::exists(word, unknown));
  return names_file ? fs::absolute(word).string() : word;
}

std::vector<std::string> words_of(const CheckedProgram& program, const RunRequest& request) {
  auto words = program.command;
  if (request.ranks == 1)
    words.insert(words.end(), program.one_rank_arguments.begin(), program.one_rank_arguments.end());
  if (request.continues) words.insert(words.end(), program.resume_arguments.begin(), program.resume_arguments.end());
  if (words.empty()) words = {program.experiment};
  if (program.in_place) return words;
  // The program itself is looked up in PATH unless it is a path.
  for (auto& word : words) {
    if (&word != &words.front() || word.find('/') != std::string::npos || word.ends_with(".py") ||
        program.command.empty())
      word = absolute_word(word);
  }
  return words;
}

std::vector<std::string> options_of(const CheckedProgram& program, const RunRequest& request) {
  std::vector<std::string> options{"--ranks", std::to_string(request.ranks)};
  options.insert(options.end(), program.options.begin(), program.options.end());
  if (request.processes) options.emplace_back("--processes");
  if (request.same_work) options.emplace_back("--record-same-work");
  if (request.seed != 0) options.insert(options.end(), {"--record-seed", std::to_string(request.seed)});
  if (request.schedule)
    options.insert(options.end(), {"--schedule", "random", "--seed-schedule", std::to_string(*request.schedule)});
  if (!request.disturb.empty()) options.insert(options.end(), {"--record-disturb", request.disturb});
  return options;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") != std::string::npos) lines.push_back(line);
  }
  return lines;
}

// A process that works in the folder, unless the program runs in place. Modules of the present folder are found as by
// `python -m`.
launcher::ProcessOptions process_of(const CheckedProgram& program, const RunRequest& request,
                                    std::vector<std::string> command, const std::string& folder) {
  launcher::ProcessOptions process{.command = std::move(command)};
  // What a program that is no Python program writes is observed by it: see observe_output.
  process.environment["LD_PRELOAD"] = preload_of_write_watcher();
  if (request.same_work) process.environment["ACCELERATE_SPLIT_BATCHES"] = "true";
  if (program.in_place) return process;
  fs::create_directories(folder);
  process.working_folder = folder;
  process.environment["PYTHONPATH"] = python_path(fs::current_path(), environment("PYTHONPATH").value_or(""));
  return process;
}

// "file:line" in a traceback of Python or a message, that of the innermost frame of the program.
std::string place_in(const std::string& error) {
  static const std::regex kPlace(
      R"re(File "([^"<]+)", line (\d+)|\b(?:at |\()([\w./+-]+\.(?:py|cpp|cc|cxx|hpp)):(\d+))re");
  std::string place;
  for (std::sregex_iterator found(error.begin(), error.end(), kPlace), end; found != end; ++found) {
    const auto& match = *found;
    const auto file = match[1].matched ? match[1].str() : match[3].str();
    if (file.find("/site-packages/") != std::string::npos || file.find("/lib/python") != std::string::npos) continue;
    place = fmt::format("{}:{}", file, match[1].matched ? match[2].str() : match[4].str());
  }
  return place;
}

}  // namespace

namespace {

// The files of a run, in its folder.
struct RunFiles {
  explicit RunFiles(const std::string& folder)
      : record(folder + "/record"),
        diagnosis(folder + "/diagnosis.json"),
        points(folder + "/points.jsonl"),
        output(folder + "/output"),
        error(folder + "/error"),
        work(folder + "/work") {}
  std::string record, diagnosis, points, output, error, work;
};

std::vector<std::string> command_of(const CheckedProgram& program, const RunRequest& request,
                                    const std::string& folder) {
  const auto path = [&](const char* name) { return fmt::format("{}/{}", folder, name); };
  const RunFiles files(folder);
  std::vector<std::string> command{own_path(), "--quiet"};
  const auto options = options_of(program, request);
  command.insert(command.end(), options.begin(), options.end());
  command.insert(command.end(), {"--record", files.record, "--record-audit", "--diagnosis", files.diagnosis});
  if (!request.faults.empty()) {
    write_text(path("faults.yaml"), request.faults);
    command.insert(command.end(), {"--faults", path("faults.yaml")});
  }
  if (!request.report.empty())
    command.insert(command.end(), {"--report", request.report, "--timeline", timeline_in(request.report)});
  const auto* const limit = program.command.empty() ? "--max-steps" : "--record-steps";
  if (request.max_steps) command.insert(command.end(), {limit, std::to_string(*request.max_steps)});
  if (!request.network.empty()) {
    write_text(path("network.yaml"), request.network);
    command.insert(command.end(), {"--network", path("network.yaml"), "--points", files.points});
  }
  if (!program.command.empty()) command.emplace_back("--");
  const auto words = words_of(program, request);
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

// What the workers of each rank's loaders have recorded.
Recording draws_in(const std::string& record, int num_ranks) {
  Recording draws(num_ranks);
  for (const auto& entry : fs::directory_iterator(record)) {
    static const std::regex kWorker(R"(rank(\d+)\.jsonl\.worker\d+)");
    std::smatch name;
    const auto file = entry.path().filename().string();
    if (!std::regex_match(file, name, kWorker)) continue;
    const auto seen = read_observations(entry.path().string());
    auto& own = draws[std::stoul(name[1])];
    own.insert(own.end(), seen.begin(), seen.end());
  }
  return draws;
}

}  // namespace

std::string timeline_in(const std::string& report) { return report + "/timeline.pftrace"; }

ProgramRun run_program(const CheckedProgram& program, const RunRequest& request, const std::string& folder) {
  const RunFiles files(folder);
  fs::create_directory(files.record);
  auto process = process_of(program, request, command_of(program, request, folder),
                            request.folder.empty() ? files.work : request.folder);
  const auto begin = std::chrono::steady_clock::now();
  const auto end = run_child(std::move(process), files.output, files.error, kLimit);
  ProgramRun run{.request = request, .exit_code = end.exit_code, .is_late = end.is_late};
  run.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  run.error = accel::read_text(files.error);
  if (fs::exists(files.diagnosis)) run.diagnosis = diagnosis_of_json(accel::read_text(files.diagnosis));
  run.recording = read_recording(files.record, request.ranks);
  run.draws = draws_in(files.record, request.ranks);
  if (const auto points = read_sweep_points(files.points); !points.empty()) run.prediction = points.back();
  return run;
}

Recording computed(const Recording& recording) {
  static const std::set<std::string, std::less<>> kOthers{"print", "write", "draw"};
  Recording kept(recording.size());
  for (std::size_t rank = 0; rank < recording.size(); ++rank) {
    std::copy_if(recording[rank].begin(), recording[rank].end(), std::back_inserter(kept[rank]),
                 [](const auto& seen) { return !kOthers.contains(seen.kind); });
  }
  return kept;
}

std::string command_line(const CheckedProgram& program, const RunRequest& request) {
  std::vector<std::string> words{"sim-run", "--ranks", std::to_string(request.ranks)};
  words.insert(words.end(), program.options.begin(), program.options.end());
  if (request.schedule)
    words.insert(words.end(), {"--schedule", "random", "--seed-schedule", std::to_string(*request.schedule)});
  if (program.command.empty()) {
    words.push_back(program.experiment);
  } else {
    words.emplace_back("--");
    words.insert(words.end(), program.command.begin(), program.command.end());
    if (request.ranks == 1)
      words.insert(words.end(), program.one_rank_arguments.begin(), program.one_rank_arguments.end());
  }
  return shell_line(words);
}

std::string failure_of(const ProgramRun& run) {
  if (run.is_late) return fmt::format("it does not end within {} s", kLimit.count());
  std::string text;
  if (run.diagnosis && !run.diagnosis->text.empty()) {
    text = run.diagnosis->text;
  } else {
    const auto lines = lines_of(run.error);
    text = lines.empty() ? fmt::format("it {}", launcher::describe_exit_code(run.exit_code)) : lines.back();
  }
  auto lines = lines_of(text);
  // The last line of a traceback says what went wrong.
  std::string line = lines.empty() ? "" : lines.front();
  for (const auto& candidate : lines) {
    static const std::regex kError(R"(^[\w.]*(Error|Exception|Interrupt)\b.*)");
    if (std::regex_match(candidate, kError)) line = candidate;
  }
  return line;
}

std::string place_of_failure(const ProgramRun& run) {
  if (run.diagnosis && !run.diagnosis->where.empty()) return run.diagnosis->where;
  if (run.diagnosis) {
    if (auto place = place_in(run.diagnosis->text); !place.empty()) return place;
  }
  return place_in(run.error);
}

}  // namespace accel::programs
