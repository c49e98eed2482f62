#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// Tests of errors in a command line, a file or the environment. Such an error ends the run before anything starts,
/// with exit code 2 and a message that names the place, what was expected and what was given.
namespace accel::testing {

inline constexpr const char* kGoodExperiment =
    "task: fashion_mnist\n"
    "limit: 64\n"
    "eval_limit: 16\n"
    "model: {name: mlp, hidden: 8}\n"
    "optimizer: {name: sgd, lr: 0.1}\n"
    "batch_size: 8\n"
    "epochs: 1\n"
    "max_steps: 2\n"
    "seed: 1\n";

inline CommandResult sim_run(std::vector<std::string> arguments,
                             const std::map<std::string, std::string>& environment = {}) {
  arguments.insert(arguments.begin(), bin("sim-run"));
  return run_command(arguments, {.environment = environment, .limit = std::chrono::seconds(20)});
}

template <typename Matcher>
void expect_refused(const CommandResult& run, const Matcher& message) {
  EXPECT_EQ(run.exit_code, 2) << run.error;
  EXPECT_THAT(run.error, message);
  EXPECT_THAT(run.output, ::testing::IsEmpty());
}

class ExperimentFiles : public ::testing::Test {
 protected:
  [[nodiscard]] std::string good() const { return folder_.write("good.yaml", kGoodExperiment); }
  [[nodiscard]] std::string bad(const std::string& content) const { return folder_.write("bad.yaml", content); }
  /// Returns the good file with `line` added, or with `line` replacing the line of the same key.
  [[nodiscard]] std::string with(const std::string& line) const {
    const auto key = line.substr(0, line.find(':') + 1);
    std::string text;
    std::istringstream in(kGoodExperiment);
    for (std::string kept; std::getline(in, kept);) {
      if (kept.rfind(key, 0) != 0) text += kept + "\n";
    }
    return bad(text + line + "\n");
  }

  TemporaryFolder folder_;
};

}  // namespace accel::testing
