// The common command line of the benchmarks, so that all report errors and write numbers in the same way.
#include "bench/program.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "bench/record.hpp"
#include "bench/serving.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"
#include "sim/programs/rehearsal/output_files.hpp"

namespace accel::bench {

Program::Program(const std::string& name, const std::string& description)
    : name_(name), app_(std::make_unique<CLI::App>(description, name)) {}

Program::~Program() = default;

void Program::add(const std::string& option, std::string& value, const std::string& help) {
  app_->add_option(option, value, help)->capture_default_str();
}

void Program::add(const std::string& option, int& value, const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::PositiveNumber)->capture_default_str();
}

void Program::add_flag(const std::string& option, bool& value, const std::string& help) {
  app_->add_flag(option, value, help);
}

void Program::add_out() { app_->add_option("--out", out_, "Write every sample to this file, as JSON"); }

std::optional<int> Program::parse(int argc, char** argv, std::vector<std::string>* others) {
  // Google Benchmark parses its own options, from the remaining arguments.
  app_->allow_extras(others != nullptr);
  if (const auto code = programs::parse_command_line(*app_, argc, argv)) return code;
  if (others != nullptr) *others = app_->remaining();
  // Checked before the measurement: a run of several minutes must not fail at its end for a wrong path.
  const auto problem = programs::problem_of_output(out_);
  if (problem.empty()) return std::nullopt;
  std::cerr << name_ << ": --out: " << problem << std::endl;
  return programs::kUsage;
}

int Program::guard(const std::function<int()>& body) const {
  try {
    return body();
  } catch (const std::exception& error) {
    std::cerr << name_ << ": " << error.what() << std::endl;
    return programs::kFailure;
  }
}

int Program::run(int argc, char** argv, const std::function<Rows()>& make_rows) {
  int rounds = 10;
  bool serve = false;
  std::string commit = "unknown";
  add("--rounds", rounds, "Number of samples per row");
  add("--commit", commit, "The commit to name in the file of --out");
  add_out();
  add_flag("--serve", serve, "Answer requests of bench_against on standard input");
  app_->footer("Also accepts the options of Google Benchmark, such as --benchmark_filter=REGEX.");
  std::vector<std::string> benchmark_options;
  if (const auto code = parse(argc, argv, &benchmark_options)) return *code;
  if (!read_benchmark_options(name_, rounds, benchmark_options)) return programs::kUsage;
  return guard([&] {
    const auto rows = make_rows();
    if (serve) {
      answer_requests(rows, std::cin, std::cout);
      return programs::kSuccess;
    }
    const auto measured = measure_rows(rows);
    std::cout << table(measured) << std::flush;
    auto record = record_of_run({argv, argv + argc}, commit);
    record["rows"] = to_json(measured);
    if (!out_.empty()) programs::write_text(out_, record.dump(1) + '\n');
    return programs::kSuccess;
  });
}

}  // namespace accel::bench
