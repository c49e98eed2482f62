#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "tests/programs/support/run_command.hpp"

/// Runs `accel launch` as a user does.
namespace accel::testing {

using Words = std::vector<std::string>;

inline constexpr std::chrono::seconds kLimit{60};

inline Words lines_of(const std::string& text) {
  Words lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

inline Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class LaunchFixture : public ::testing::Test {
 protected:
  /// Returns an environment without the configuration file of the user who runs the test. Variables that make a
  /// process a rank must not be inherited from a launcher around the test.
  [[nodiscard]] std::map<std::string, std::string> clean(std::map<std::string, std::string> environment = {}) const {
    environment.try_emplace("HF_HOME", folder_.path("home"));
    environment.try_emplace("OMPI_ALLOW_RUN_AS_ROOT", "1");
    environment.try_emplace("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    return environment;
  }
  [[nodiscard]] CommandResult launch(const Words& arguments,
                                     const std::map<std::string, std::string>& environment = {}) const {
    return run_command(Words{bin("accel"), "launch"} + arguments, {.environment = clean(environment), .limit = kLimit});
  }
  [[nodiscard]] CommandResult shell(const Words& flags, const std::string& script,
                                    const std::map<std::string, std::string>& environment = {}) const {
    return launch(flags + Words{"/bin/sh", "-c", script}, environment);
  }
  /// Expects that every process that left its number in the folder `pids` ends within two seconds.
  void expect_no_process_left(std::size_t count) const {
    std::size_t found = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path("pids"))) {
      ++found;
      pollfd ended{static_cast<int>(syscall(SYS_pidfd_open, std::stol(entry.path().filename()), 0)), POLLIN, 0};
      EXPECT_TRUE(ended.fd < 0 || poll(&ended, 1, 2000) == 1) << "process " << entry.path().filename() << " is left";
      close(ended.fd);
    }
    EXPECT_EQ(found, count);
  }
  /// Returns the start of a script whose processes leave their numbers.
  [[nodiscard]] std::string leaves_number() const {
    std::filesystem::create_directories(folder_.path("pids"));
    return "echo > " + folder_.path("pids") + "/$$; ";
  }
  [[nodiscard]] std::string awaits(int count) const {
    return "while [ $(ls " + folder_.path("pids") + " | wc -l) -lt " + std::to_string(count) +
           " ]; do sleep 0.02; done; ";
  }

  TemporaryFolder folder_;
};

}  // namespace accel::testing
