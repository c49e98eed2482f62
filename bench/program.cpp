// The common command line of the benchmarks, so that all report errors and write numbers in the same way.
#include "bench/program.hpp"

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/runtime/exit_code.hpp"
#include "sim/programs/runtime/output_files.hpp"

namespace accel::bench {

Program::Program(const std::string& name, const std::string& description, const std::string& out_option)
    : name_(name), out_option_(out_option), app_(std::make_unique<CLI::App>(description, name)) {
  app_->add_option(out_option, out_, "Write the numbers to this file, as JSON");
}

Program::~Program() = default;

void Program::add(const std::string& option, std::string& value, const std::string& help) {
  app_->add_option(option, value, help)->capture_default_str();
}

void Program::add(const std::string& option, int& value, const std::string& help) {
  app_->add_option(option, value, help)->check(CLI::PositiveNumber)->capture_default_str();
}

void Program::add(const std::string& option, std::vector<std::string>& values, const std::vector<std::string>& choices,
                  const std::string& help) {
  app_->add_option(option, values, help)->check(CLI::IsMember(choices));
}

std::optional<int> Program::parse(int argc, char** argv, std::vector<std::string>* others) {
  // Google Benchmark parses its own options, from the remaining arguments.
  app_->allow_extras(others != nullptr);
  if (const auto code = programs::parse_command_line(*app_, argc, argv)) return code;
  if (others != nullptr) *others = app_->remaining();
  // Checked before the measurement: a run of several minutes must not fail at its end for a wrong path.
  const auto problem = programs::problem_of_output(out_);
  if (problem.empty()) return std::nullopt;
  std::cerr << name_ << ": " << out_option_ << ": " << problem << std::endl;
  return programs::kUsage;
}

// The file gets the same JSON as standard output, also if `print` shows a table instead.
int Program::report(const std::function<Json()>& measure, const std::function<void(const Json&)>& print) const {
  try {
    const auto numbers = measure();
    const auto text = numbers.dump(2) + '\n';
    if (print) {
      print(numbers);
    } else {
      std::cout << text << std::flush;
    }
    if (!out_.empty()) programs::write_text(out_, text);
  } catch (const std::exception& error) {
    std::cerr << name_ << ": " << error.what() << std::endl;
    return programs::kFailure;
  }
  return programs::kSuccess;
}

}  // namespace accel::bench
