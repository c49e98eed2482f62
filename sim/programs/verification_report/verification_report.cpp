// Writes the page of `./dev report` from what tests, mutants and benchmarks left.

#include <CLI/CLI.hpp>
#include <iostream>

#include "reference/core/errors.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"
#include "sim/programs/verification_report/read_results.hpp"

namespace accel::programs {
namespace {

int write_report(int argc, char** argv) {
  ResultFolders folders;
  std::string out, commit = "unknown";
  CLI::App app("Writes one HTML page about the results of tests, mutants and benchmarks.", "verification-report");
  app.add_option("--source", folders.source, "The repository, with reports/ and configs/")
      ->check(CLI::ExistingDirectory)
      ->capture_default_str();
  app.add_option("--artifacts", folders.artifacts, "The folder that ./dev test wrote")
      ->check(CLI::ExistingDirectory)
      ->required();
  app.add_option("--history", folders.history, "Files of earlier benchmarks, named COMMIT-NAME_bench.json")
      ->check(CLI::ExistingDirectory);
  app.add_option("--commit", commit, "The commit to name on the page");
  app.add_option("--out", out, "The page")->required();
  try {
    if (const auto code = parse_command_line(app, argc, argv)) return *code;
    const auto problem = problem_of_output(out);
    check_config(problem.empty(), "--out: {}", problem);
    auto report = read_results(folders);
    report.title = "accel: results of tests, mutants and benchmarks";
    report.facts.insert(report.facts.begin(),
                        {{"command of the page", "./dev report"},
                         {"commit of the page", commit},
                         {"tests", report.tests.command.empty() ? "not run" : report.tests.command},
                         {"commit of the tests", report.tests.commit},
                         {"date of the tests", report.tests.date}});
    std::erase_if(report.facts, [](const auto& fact) { return fact.second.empty(); });
    write_text(out, verification_page(report));
    return kSuccess;
  } catch (const std::exception& error) {
    std::cerr << "verification-report: " << error.what() << std::endl;
    return exit_code_of(error);
  }
}

}  // namespace
}  // namespace accel::programs

int main(int argc, char** argv) { return accel::programs::write_report(argc, argv); }
