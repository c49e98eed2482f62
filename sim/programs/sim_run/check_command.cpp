// `sim-run check`: runs a program several times, and judges it by the checks of check.hpp.
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <iostream>
#include <nlohmann/json.hpp>

#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "sim/programs/check/check.hpp"
#include "sim/programs/check/default_network.hpp"
#include "sim/programs/check/runs.hpp"
#include "sim/programs/command_line/child.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/command_line/run_options.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/sim_run/commands.hpp"
#include "sim/report/markup.hpp"

namespace accel::programs {
namespace {

using Json = nlohmann::ordered_json;

struct CheckArguments {
  int ranks = 4;
  bool is_quick = false, json = false, in_place = false, map_cuda = false;
  std::vector<std::string> only, skip, overrides;
  std::string one_rank_arguments, resume_arguments, network, junit, report;
  std::string experiment;
  std::vector<std::string> command;
};

struct Judged {
  const Check* check;
  CheckResult result;
  double seconds = 0;
};

std::vector<std::string> names_of_checks() {
  std::vector<std::string> names;
  for (const auto& check : checks()) names.emplace_back(check.name);
  return names;
}

std::vector<std::string> problems_of(const CheckArguments& arguments) {
  std::vector<std::string> problems;
  RunOptions shared{.rank_counts = {arguments.ranks}};
  shared.rehearsal.report = arguments.report;
  for (auto& problem : problems_of(shared)) problems.push_back(std::move(problem));
  if (arguments.experiment.empty() == arguments.command.empty())
    problems.emplace_back("check: expected an experiment file or `-- PROGRAM [ARGS...]`");
  if (auto problem = problem_of_output(arguments.junit); !problem.empty())
    problems.push_back(fmt::format("--junit: {}", problem));
  const auto names = names_of_checks();
  for (const auto& [option, given] : {std::pair("--only", &arguments.only), {"--skip", &arguments.skip}}) {
    for (const auto& name : *given) {
      if (std::find(names.begin(), names.end(), name) == names.end())
        problems.push_back(
            fmt::format("{}: unknown check '{}'; expected some of: {}", option, name, fmt::join(names, ", ")));
    }
  }
  if (!arguments.command.empty() && !arguments.overrides.empty())
    problems.emplace_back("--set: only experiments support this option; leave it out");
  if (arguments.command.empty() && !(arguments.one_rank_arguments + arguments.resume_arguments).empty())
    problems.emplace_back("--one-rank-args, --resume-args: only programs have arguments; leave them out");
  return problems;
}

// Words as a shell splits them, without its other syntax.
std::vector<std::string> split_words(const std::string& text) { return CLI::detail::split_up(text); }

CheckedProgram program_of(const CheckArguments& arguments) {
  CheckedProgram program{.experiment = arguments.experiment,
                         .command = arguments.command,
                         .one_rank_arguments = split_words(arguments.one_rank_arguments),
                         .resume_arguments = split_words(arguments.resume_arguments),
                         .in_place = arguments.in_place};
  if (arguments.map_cuda) program.options.emplace_back("--map-cuda");
  for (const auto& text : arguments.overrides) program.options.insert(program.options.end(), {"--set", text});
  return program;
}

std::string program_line(const CheckArguments& arguments) {
  return arguments.command.empty() ? arguments.experiment : shell_line(arguments.command);
}

// The command that makes all checks, or this one alone.
std::string replay_of(const CheckArguments& arguments, const Check* check = nullptr) {
  std::vector<std::string> words{"sim-run", "check", "--ranks", std::to_string(arguments.ranks)};
  if (check != nullptr) words.insert(words.end(), {"--only", check->name});
  if (arguments.in_place) words.emplace_back("--in-place");
  if (arguments.map_cuda) words.emplace_back("--map-cuda");
  if (!arguments.one_rank_arguments.empty())
    words.insert(words.end(), {"--one-rank-args", arguments.one_rank_arguments});
  if (!arguments.resume_arguments.empty()) words.insert(words.end(), {"--resume-args", arguments.resume_arguments});
  if (!arguments.network.empty()) words.insert(words.end(), {"--network", arguments.network});
  for (const auto& text : arguments.overrides) words.insert(words.end(), {"--set", text});
  if (arguments.command.empty()) {
    words.push_back(arguments.experiment);
  } else {
    words.emplace_back("--");
    words.insert(words.end(), arguments.command.begin(), arguments.command.end());
  }
  return shell_line(words);
}

// Lines of files in this folder are named as seen from here.
std::string shortened(std::string text) {
  const auto folder = std::filesystem::current_path().string() + "/";
  for (auto at = text.find(folder); at != std::string::npos; at = text.find(folder, at)) text.erase(at, folder.size());
  return text;
}

bool needs_cause(Verdict verdict) { return verdict == Verdict::kFail || verdict == Verdict::kFinding; }

Judged judge(const CheckArguments& arguments, const Check& check, Runs& runs) {
  const auto begin = std::chrono::steady_clock::now();
  Judged judged{.check = &check, .result = {}};
  try {
    judged.result = check.judge(runs);
  } catch (const CannotJudge& problem) {
    judged.result = {.verdict = Verdict::kNotApplicable, .text = problem.reason};
  }
  if (needs_cause(judged.result.verdict) && judged.result.replay.empty())
    judged.result.replay = replay_of(arguments, &check);
  judged.result.text = shortened(std::move(judged.result.text));
  judged.result.where = shortened(std::move(judged.result.where));
  judged.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return judged;
}

void print(std::ostream& out, const Judged& judged) {
  const auto& result = judged.result;
  const auto verdict = result.verdict == Verdict::kFail            ? "FAIL"
                       : result.verdict == Verdict::kNotApplicable ? "-"
                                                                   : name_of(result.verdict);
  out << fmt::format("{:<15} {:<8} {:>6.1f} s  {}\n", judged.check->name, verdict, judged.seconds, result.text);
  if (!result.where.empty()) out << fmt::format("{:>26}at {}\n", "", result.where);
  if (!result.replay.empty()) out << fmt::format("{:>26}{}\n", "", result.replay);
  out << std::flush;
}

// A finding passes, and says what it found.
std::string junit_of(const CheckArguments& arguments, const std::vector<Judged>& all) {
  const auto escaped = [](std::string text) {  // XML has no control characters
    std::erase_if(text, [](unsigned char c) { return c < ' ' && c != '\n' && c != '\t'; });
    return sim::report::escape(text);
  };
  std::string cases;
  double seconds = 0;
  int failures = 0, skipped = 0;
  for (const auto& [check, result, own] : all) {
    seconds += own;
    const auto text = escaped(fmt::format("{}\n{}\n{}", result.text, result.where, result.replay));
    cases += fmt::format("  <testcase classname=\"{}\" name=\"{}\" time=\"{:.3f}\">", escaped(program_line(arguments)),
                         check->name, own);
    if (result.verdict == Verdict::kFail) {
      ++failures;
      cases += fmt::format("<failure message=\"{}\">{}</failure>", escaped(result.text), text);
    } else if (result.verdict == Verdict::kNotApplicable) {
      ++skipped;
      cases += fmt::format("<skipped message=\"{}\"/>", escaped(result.text));
    } else {
      cases += fmt::format("<system-out>{}</system-out>", text);
    }
    cases += "</testcase>\n";
  }
  return fmt::format(
      "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"sim-run check\" tests=\"{}\" failures=\"{}\" "
      "errors=\"0\" skipped=\"{}\" time=\"{:.3f}\">\n{}</testsuite>\n",
      all.size(), failures, skipped, seconds, cases);
}

std::string title_of(const CheckArguments& arguments) {
  return fmt::format("{} on {} ranks", program_line(arguments), arguments.ranks);
}

// Runs that show a failure are made once more, with a page and a timeline of their own.
void write_report(const CheckArguments& arguments, const std::vector<Judged>& all, Runs& runs) {
  namespace fs = std::filesystem;
  const auto folder = fs::absolute(arguments.report);
  sim::CheckReport report{.title = title_of(arguments)};
  report.facts.emplace_back("command", replay_of(arguments));
  for (const auto& [check, result, seconds] : all) {
    sim::CheckedQuestion question{.name = check->name,
                                  .question = check->question,
                                  .verdict = result.verdict,
                                  .seconds = seconds,
                                  .text = result.text,
                                  .where = result.where,
                                  .replay = result.replay,
                                  .samples = result.samples,
                                  .quantities = result.quantities};
    if (auto run = result.run) {
      run->report = (folder / check->name).string();
      fs::create_directories(run->report);
      static_cast<void>(runs.get(*run));
      const auto beside = [&](const fs::path& file) {
        return fs::exists(file) ? fs::relative(file, folder).string() : "";
      };
      question.run_page = beside(fs::path(run->report) / "index.html");
      question.timeline = beside(timeline_in(run->report));
    }
    report.checks.push_back(std::move(question));
  }
  fs::create_directories(folder);
  write_text((folder / "index.html").string(), sim::check_page(report));
}

Json json_of(const std::vector<Judged>& all, bool has_failed) {
  Json results = Json::array();
  for (const auto& [check, result, seconds] : all) {
    results.push_back({{"name", check->name},
                       {"verdict", name_of(result.verdict)},
                       {"seconds", seconds},
                       {"text", result.text},
                       {"where", result.where.empty() ? Json(nullptr) : Json(result.where)},
                       {"replay", result.replay.empty() ? Json(nullptr) : Json(result.replay)}});
  }
  return {{"verdict", has_failed ? "fail" : "pass"}, {"checks", results}};
}

int run(const CheckArguments& arguments) {
  const auto network = arguments.network.empty() ? CheckNetwork{"25 Gb/s Ethernet", kEthernet25g}
                                                 : CheckNetwork{arguments.network, read_text(arguments.network)};
  Runs runs(program_of(arguments), arguments.ranks, arguments.is_quick, network);
  std::vector<const Check*> chosen;
  const auto is_in = [](const std::vector<std::string>& names, const char* name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& check : checks()) {
    if ((arguments.only.empty() || is_in(arguments.only, check.name)) && !is_in(arguments.skip, check.name))
      chosen.push_back(&check);
  }
  std::vector<Judged> all;
  for (const auto* check : chosen) {
    all.push_back(judge(arguments, *check, runs));
    print(arguments.json ? std::cerr : std::cout, all.back());
  }
  const auto count = [&](Verdict verdict) {
    return std::count_if(all.begin(), all.end(), [&](const auto& judged) { return judged.result.verdict == verdict; });
  };
  const bool has_failed = count(Verdict::kFail) > 0;
  if (!arguments.junit.empty()) write_text(arguments.junit, junit_of(arguments, all));
  if (!arguments.report.empty()) write_report(arguments, all, runs);
  if (arguments.json) {
    std::cout << json_of(all, has_failed).dump() << std::endl;
  } else {
    std::cout << fmt::format("{} passed, {} failed, {} findings, {} not applicable", count(Verdict::kPass),
                             count(Verdict::kFail), count(Verdict::kFinding), count(Verdict::kNotApplicable))
              << std::endl;
  }
  return has_failed ? kFailure : kSuccess;
}

}  // namespace

int check_main(int argc, char** argv, const ExperimentFiles& experiments) {
  CheckArguments arguments;
  arguments.command = take_program("sim-run check", argc, argv);
  CLI::App app(
      "Runs a program several times and checks that its distributed training is right. Exit code 0: no check failed; "
      "1: one did.",
      "sim-run check");
  std::string questions = "Checks:";
  for (const auto& check : checks()) questions += fmt::format("\n  {:<15} {}", check.name, check.question);
  app.footer(questions);
  app.add_option("--ranks", arguments.ranks, "Number of ranks")->capture_default_str();
  app.add_flag("--quick", arguments.is_quick, "Fewer runs");
  app.add_option("--only", arguments.only, "Names of the checks to make, separated by commas")->delimiter(',');
  app.add_option("--skip", arguments.skip, "Names of checks to leave out")->delimiter(',');
  app.add_option("--one-rank-args", arguments.one_rank_arguments,
                 "Arguments that the program gets besides on one rank, such as \"--batch-size 32\"");
  app.add_option("--resume-args", arguments.resume_arguments,
                 "Arguments with which the program continues after an interruption, such as \"--resume latest\"");
  app.add_option("--network", arguments.network, "Network of the check scaling (YAML); default: 25 Gb/s Ethernet");
  app.add_flag("--in-place", arguments.in_place, "Run in the current folder instead of an empty one");
  app.add_flag("--map-cuda", arguments.map_cuda, "Run a Python program for GPUs on CPU ranks");
  app.add_flag("--json", arguments.json,
               "End with one line of JSON on standard output; the texts go to standard error");
  app.add_option("--junit", arguments.junit, "Write the results to this file, as JUnit XML");
  app.add_option("--report", arguments.report,
                 "Write a page to index.html in this folder, and pages of the runs that fail beside it");
  app.add_option("--set", arguments.overrides, "key.path=value: override one value of the experiment; repeatable")
      ->allow_extra_args(false);
  app.add_option("EXPERIMENT", arguments.experiment, "Experiment file (YAML), or -- PROGRAM [ARGS...]: a user program");
  if (const auto code = parse_command_line(app, argc, argv)) return *code;
  const auto problems = problems_of(arguments);
  check_config(problems.empty(), "{}", listed(problems, "\n"));
  if (!arguments.experiment.empty()) experiments.check(arguments.experiment, arguments.overrides, arguments.ranks);
  return run(arguments);
}

}  // namespace accel::programs
