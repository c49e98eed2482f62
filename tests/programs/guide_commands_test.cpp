// The commands of README.md and of the guide, run with the programs of the build: they work, and print what the pages
// show. tests/architecture/guide_test.cpp checks the options of all other commands.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <optional>
#include <regex>

#include "backends/launch/ports.hpp"
#include "tests/programs/support/launch_fixture.hpp"

namespace accel::testing::guide_commands_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

// The launching page. Commands that need what a test machine lacks are left out: GPUs, SLURM, Python's torchrun.
class LaunchingPageTest : public LaunchFixture {
 protected:
  void SetUp() override {
    fs::create_directories(folder_.path("work"));
    folder_.write("work/train", "#!/bin/sh\nmkdir -p $FOLDER\nexec '" + bin("launched_training") + "' $FOLDER\n");
    folder_.write("work/hosts", "localhost slots=4\n");
    fs::permissions(folder_.path("work/train"), fs::perms::owner_all);
  }
  static Words commands() {
    const auto page = read_file(source("reference/guide/launching.md"));
    const auto section = page.substr(page.find("## From a laptop to a cluster"));
    const auto begin = section.find("```sh\n") + 6;
    Words commands;
    for (const auto& line : lines_of(section.substr(begin, section.find("```", begin) - begin))) {
      const auto command = line.substr(0, line.find("  #"));
      if (!command.empty()) commands.push_back(command);
    }
    return commands;
  }
  [[nodiscard]] CommandResult run(std::string command, const std::string& folder, const std::string& port) const {
    for (const auto& [shown, here] : {std::pair<std::string, std::string>("10.0.0.1", "127.0.0.1"), {"29500", port}}) {
      if (const auto at = command.find(shown); at != std::string::npos) command.replace(at, shown.size(), here);
    }
    // Under mpirun the launcher cannot look for a free port on all hosts, and the default may be another test's.
    if (const auto at = command.find("--mpirun_hostfile"); at != std::string::npos)
      command.insert(at, "--main_process_port " + port + " ");
    const auto path = fs::path(bin("accel")).parent_path().string() + ":/usr/local/bin:/usr/bin:/bin";
    return run_command(
        {"/bin/sh", "-c", "cd " + folder_.path("work") + " && " + command},
        {.environment = clean({{"PATH", path},
                               {"FOLDER", folder},
                               {"OMPI_MCA_rmaps_base_oversubscribe", "1"},
                               {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},  // Open MPI 5
                               {"OMP_NUM_THREADS", "1"},
                               {"MASTER_PORT", command.find("accel") == 0 ? "" : port}}),
         .limit = kLimit});
  }
};

// The rows of the page without their last column, as sim-run prints them.
TEST_F(LaunchingPageTest, TheTableOfChecksIsThatOfSimRun) {
  std::string rows;
  const auto page = read_file(source("reference/guide/simulator.md"));
  const auto table = page.substr(page.find("| check | level | finds |"));
  static const std::regex row(R"(\| (\w+) \| ([^|]+) \| ([^|]+) \|[^|]*\|)");
  auto lines = lines_of(table.substr(0, table.find("\n\n")));
  lines.erase(lines.begin(), lines.begin() + 2);
  for (const auto& line : lines) {
    std::smatch cells;
    ASSERT_TRUE(std::regex_match(line, cells, row)) << line;
    rows += fmt::format("{:<16} {:<14} {}\n", cells[1].str(), cells[2].str(),
                        std::regex_replace(cells[3].str(), std::regex("`"), ""));
  }
  const auto listed = run_command({bin("sim-run"), "--list-checks"}, {.environment = clean({}), .limit = kLimit});
  EXPECT_EQ(listed.exit_code, 0) << listed.error;
  EXPECT_EQ(listed.output, rows);
}

TEST_F(LaunchingPageTest, CommandsRunAsShown) {
  int count = 0;
  std::optional<std::future<CommandResult>> first_machine;
  auto port = std::to_string(launcher::free_port());
  for (const auto& command : commands()) {
    if (command.find("--multi_gpu") != std::string::npos || command.starts_with("srun") ||
        command.starts_with("torchrun"))
      continue;
    ++count;
    const auto folder = folder_.path("run" + std::to_string(count));
    if (command.find("--machine_rank 0") != std::string::npos) {
      first_machine =
          std::async(std::launch::async, [=, this] { return run(command, folder_.path("machines"), port); });
      continue;
    }
    const bool is_second = command.find("--machine_rank 1") != std::string::npos;
    const auto result = run(command, is_second ? folder_.path("machines") : folder, port);
    EXPECT_EQ(result.exit_code, 0) << command << "\n" << result.error;
    const auto of_main = is_second ? first_machine->get() : result;
    EXPECT_EQ(of_main.exit_code, 0) << of_main.error;
    EXPECT_THAT(last_line(of_main.output), HasSubstr("parameters ")) << command;
    if (is_second) first_machine.reset();
    port = std::to_string(launcher::free_port());
  }
  EXPECT_EQ(count, 7);
}

// --- marked blocks of all pages --------------------------------------------------------------------------------------

struct Block {
  std::string page;
  Words lines;
};

/// Blocks of this language that stand directly below this comment.
std::vector<Block> blocks_below(const std::string& mark, const std::string& language) {
  Words pages{source("README.md")};
  for (const auto& entry : fs::directory_iterator(source("reference/guide"))) {
    if (entry.path().extension() == ".md") pages.push_back(entry.path().string());
  }
  std::vector<Block> blocks;
  for (const auto& page : pages) {
    const auto lines = lines_of(read_file(page));
    for (std::size_t place = 0; place + 2 < lines.size(); ++place) {
      if (lines[place] != "<!-- " + mark + " by tests/programs/guide_commands_test.cpp -->") continue;
      EXPECT_EQ(lines[place + 1], "```" + language) << page;
      blocks.push_back({page, {}});
      for (place += 2; place < lines.size() && lines[place] != "```"; ++place)
        blocks.back().lines.push_back(lines[place]);
    }
  }
  return blocks;
}

class MarkedBlocksTest : public LaunchFixture {
 protected:
  /// Both streams of a command that runs in `folder`, in `output`.
  [[nodiscard]] CommandResult run_in(const std::string& folder, const std::string& command) const {
    const auto path = fs::path(bin("accel")).parent_path().string() + ":/usr/local/bin:/usr/bin:/bin";
    return run_command({"/bin/sh", "-c", "cd '" + folder + "' && " + command + " 2>&1"},
                       {.environment = clean({{"PATH", path}}), .limit = kLimit});
  }
};

/// Line numbers and sizes change with the sources, and times with the machine.
Words without_numbers(Words lines) {
  static const std::regex number(R"([0-9]+(\.[0-9]+)?)");
  for (auto& line : lines) line = std::regex_replace(line, number, "0");
  return lines;
}

// The first line of such a block is `$ COMMAND`, the others are all that it prints.
TEST_F(MarkedBlocksTest, CommandsPrintWhatThePagesShow) {
  const auto blocks = blocks_below("output checked", "console");
  EXPECT_GE(blocks.size(), 4U);
  for (const auto& [page, lines] : blocks) {
    ASSERT_FALSE(lines.empty()) << page;
    ASSERT_TRUE(lines.front().starts_with("$ ")) << page;
    const auto run = run_in(source(""), lines.front().substr(2));
    EXPECT_EQ(without_numbers(lines_of(run.output)), without_numbers({lines.begin() + 1, lines.end()}))
        << page << ": " << lines.front();
  }
}

// The commands of a block run one after the other in one folder, since they use each other's files.
TEST_F(MarkedBlocksTest, CommandsRunInTheOrderOfTheBlock) {
  const auto blocks = blocks_below("run", "sh");
  EXPECT_GE(blocks.size(), 2U);
  for (std::size_t number = 0; number < blocks.size(); ++number) {
    const auto folder = folder_.path("block" + std::to_string(number));
    fs::create_directories(folder);
    fs::create_directory_symlink(source("configs"), folder + "/configs");
    for (const auto& line : blocks[number].lines) {
      const auto command = line.substr(0, line.find("  #"));
      const int expected = command.find("--faults") == std::string::npos ? 0 : 3;  // the fault stops the run
      const auto run = run_in(folder, command);
      EXPECT_EQ(run.exit_code, expected) << blocks[number].page << ": " << command << "\n" << run.output;
    }
  }
}

}  // namespace
}  // namespace accel::testing::guide_commands_test
