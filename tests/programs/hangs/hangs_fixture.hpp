#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// Runs hanging_program on simulated and on real ranks.
namespace accel::testing::hangs {

using Json = nlohmann::json;
using Words = std::vector<std::string>;

struct Ended {
  CommandResult result;
  Json diagnosis;
};

class HangsTest : public ::testing::TestWithParam<std::string> {
 protected:
  [[nodiscard]] Ended run_on(const std::string& backend, const std::string& mistake, const Words& options = {}) const {
    const auto file = folder_.path(backend + ".json");
    auto command = backend == "sim" ? Words{bin("sim-run"), "--quiet", "--ranks", "4"}
                                    : Words{bin("accel"), "launch", "--num_processes", "4", "--cpu"};
    command.insert(command.end(), options.begin(), options.end());
    command.insert(command.end(), {"--diagnosis", file});
    if (backend == "sim") command.emplace_back("--");
    command.insert(command.end(), {bin("hanging_program"), mistake});
    Ended run{.result = run_command(command)};
    std::ifstream(file) >> run.diagnosis;
    return run;
  }

  TemporaryFolder folder_;
};

/// For bash: starts the program $0 with the argument $1 as these ranks, without a launcher, and prints how each ended.
inline std::string script_of_ranks(int first_rank, int count) {
  return fmt::format(
      "for local in $(seq 0 {}); do RANK=$(({} + local)) LOCAL_RANK=$local $0 $1 & ranks=\"$ranks $!\"; done; "
      "for rank in $ranks; do wait $rank; echo ended $?; done",
      count - 1, first_rank);
}

inline std::size_t count_of(const std::string& part, const std::string& text) {
  std::size_t count = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace accel::testing::hangs
