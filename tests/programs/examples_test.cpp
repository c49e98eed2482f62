// Builds and runs the examples as a user does: copied out of the tree, against the installed package, alone, under
// a launcher's variables, and under the installed sim-run. Each example checks its own result, so its exit code is
// the test.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <future>
#include <iterator>
#include <sstream>
#include <thread>

#include "backends/launch/local_launch.hpp"
#include "tests/programs/support/run_command.hpp"

namespace accel::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kProcesses = 4;
// The compiler of the library. GCC instantiates all of torch/torch.h in each example, even where the header is
// precompiled.
constexpr const char* kSameCompiler = "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER;
const CommandOptions kBuild{.limit = std::chrono::seconds(500)};

// One folder for all examples, and the same one in every run, so that a compiler cache recognizes the commands.
fs::path work_folder() { return fs::path(bin("")).parent_path().parent_path() / "examples"; }
std::string installed(const std::string& path) { return (work_folder() / "package" / path).string(); }
std::string built(const std::string& program) { return (work_folder() / program).string(); }

CommandResult configure(const std::string& example, const std::vector<std::string>& options = {}) {
  std::vector<std::string> command{ACCEL_CMAKE,
                                   "-G",
                                   "Ninja",
                                   "-S",
                                   (work_folder() / "source" / example).string(),
                                   "-B",
                                   built(example),
                                   "-DCMAKE_PREFIX_PATH=" + installed(""),
                                   "-DCMAKE_CXX_COMPILER_LAUNCHER=" ACCEL_LAUNCHER,
                                   "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror " ACCEL_CXX_FLAGS};
  command.insert(command.end(), options.begin(), options.end());
  return run_command(command, kBuild);
}

struct Project {
  std::string name;
  std::vector<std::string> options;  // of its configuration
};

struct ProjectResult {
  CommandResult configured, built;
};

// One compiler per project: several projects are built at once.
ProjectResult configure_and_build(const Project& project) {
  ProjectResult result{.configured = configure(project.name, project.options), .built = {}};
  if (result.configured.exit_code == 0)
    result.built = run_command({ACCEL_CMAKE, "--build", built(project.name), "--parallel", "1"}, kBuild);
  return result;
}

// Builds projects that do not depend on each other, as many at once as there are processors, at most four
// because of the memory that compilers need.
void expect_built(const std::vector<Project>& projects) {
  std::vector<ProjectResult> results(projects.size());
  std::atomic<std::size_t> next = 0;
  const auto build_remaining = [&] {
    for (std::size_t index = 0; (index = next++) < projects.size();)
      results[index] = configure_and_build(projects[index]);
  };
  std::vector<std::future<void>> builders;
  for (unsigned int count = std::clamp(std::thread::hardware_concurrency(), 1U, 4U); count > 0; --count)
    builders.push_back(std::async(std::launch::async, build_remaining));
  for (auto& builder : builders) builder.get();
  for (std::size_t index = 0; index < projects.size(); ++index) {
    const auto& [configured, build] = results[index];
    ASSERT_EQ(configured.exit_code, 0) << projects[index].name << "\n" << configured.output << configured.error;
    ASSERT_EQ(build.exit_code, 0) << projects[index].name << "\n" << build.output << build.error;
  }
}

// Writes a file and creates its folder.
void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

// Writes a project whose only purpose is the precompiled header of the two headers that every example includes first.
// Each example would compile them for a minute. Other headers are not in it, so a missing include still fails.
void write_precompiled() {
  const auto folder = work_folder() / "source/precompiled";
  write(folder / "CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.25)\nproject(precompiled LANGUAGES CXX)\nfind_package(accel REQUIRED)\n"
        "add_executable(precompiled precompiled.cpp)\ntarget_link_libraries(precompiled PRIVATE accel::accel)\n"
        "target_precompile_headers(precompiled PRIVATE <torch/torch.h> <accel/accel.hpp>)\n");
  write(folder / "precompiled.cpp", "int main() {}\n");
  const auto header = built("precompiled") + "/CMakeFiles/precompiled.dir/cmake_pch.hxx";
  write(folder / "use_precompiled.cmake",
        "function(use_precompiled)\n"
        "  string(REPLACE <PCH_HEADER> " +
            header +
            " options \"${CMAKE_CXX_COMPILE_OPTIONS_USE_PCH}\")\n"
            "  string(REPLACE <PCH_FILE> " +
            header +
            ".pch options \"${options}\")\n"
            "  list(JOIN options \" \" options)\n"
            "  get_property(targets DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)\n"
            "  foreach(target IN LISTS targets)\n"
            "    target_compile_options(${target} PRIVATE \"SHELL:${options}\")\n"
            "  endforeach()\n"
            "endfunction()\n"
            "cmake_language(DEFER CALL use_precompiled)\n");
}

// Writes a test that a user could write with the simulator's headers.
void write_simulation() {
  write(work_folder() / "source/simulation/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.25)\nproject(simulation LANGUAGES CXX)\nfind_package(accel REQUIRED)\n"
        "add_executable(simulation simulation.cpp)\ntarget_link_libraries(simulation PRIVATE accel::accel)\n");
  write(work_folder() / "source/simulation/simulation.cpp",
        "#include \"sim/backend/simulate.hpp\"\n#include \"sim/engine/run_error.hpp\"\n"
        "int main() {\n"
        "  try {\n"
        "    accel::sim::simulate({.num_ranks = 3}, [](accel::RankContext& rank) { if (rank.rank != 1) "
        "rank.world.barrier(); });\n"
        "  } catch (const accel::sim::RunError& error) {\n"
        "    return error.diagnosis()->ranks.front() == 1 ? 0 : 1;\n"
        "  }\n"
        "  return 1;\n"
        "}\n");
}

class Examples : public ::testing::Environment {
 public:
  void SetUp() override {
    // Files of an earlier installation could hide a header that is no longer installed.
    fs::remove_all(work_folder());
    const auto install =
        run_command({ACCEL_CMAKE, "--install", work_folder().parent_path().string(), "--prefix", installed("")});
    ASSERT_EQ(install.exit_code, 0) << install.error;
    fs::copy(source("reference/examples"), work_folder() / "source", fs::copy_options::recursive);
    write_simulation();
    write_precompiled();
    // The package serves programs of the other compiler too.
    expect_built({{"precompiled", {kSameCompiler}}, {"simulation", {"-DCMAKE_CXX_COMPILER=g++"}}});
    if (::testing::Test::HasFatalFailure()) return;
    const auto use = (work_folder() / "source/precompiled/use_precompiled.cmake").string();
    std::vector<Project> examples;
    // Those with several programs come first, so that none of them is built alone at the end.
    for (const auto* name :
         {"training_options", "own_law", "unit_tests", "from_libtorch", "quick_start", "stream", "resume", "sources",
          "parquet", "sharded", "parallel", "pipeline", "elastic", "large_model", "launcher", "guide"})
      examples.push_back({name, {kSameCompiler, "-DCMAKE_PROJECT_INCLUDE=" + use}});
    expect_built(examples);
  }
};

[[maybe_unused]] auto* const environment = ::testing::AddGlobalTestEnvironment(new Examples);

using Variables = std::map<std::string, std::string>;

std::vector<std::string> command_of(std::vector<std::string> program, const std::vector<std::string>& arguments) {
  program.insert(program.end(), arguments.begin(), arguments.end());
  return program;
}

// Starts one process per rank with torchrun's variables.
std::array<CommandResult, kProcesses> run_processes(const std::string& program,
                                                    const std::vector<std::string>& arguments = {}) {
  const auto port = std::to_string(launcher::free_port());
  std::array<std::future<CommandResult>, kProcesses> running;
  for (int rank = 0; rank < kProcesses; ++rank) {
    const auto index = std::to_string(rank), count = std::to_string(kProcesses);
    const Variables variables{{"RANK", index},
                              {"LOCAL_RANK", index},
                              {"WORLD_SIZE", count},
                              {"LOCAL_WORLD_SIZE", count},
                              {"MASTER_ADDR", "127.0.0.1"},
                              {"MASTER_PORT", port}};
    running.at(rank) = std::async(std::launch::async, [=] {
      return run_command(command_of({built(program)}, arguments), {.environment = variables});
    });
  }
  std::array<CommandResult, kProcesses> results;
  std::transform(running.begin(), running.end(), results.begin(), [](auto& result) { return result.get(); });
  return results;
}

CommandResult simulate(const std::string& program, int ranks, const std::vector<std::string>& arguments = {}) {
  return run_command(
      command_of({installed("bin/sim-run"), "--ranks", std::to_string(ranks), "--", built(program)}, arguments));
}

class ExampleTest : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Programs, ExampleTest,
                         ::testing::Values("quick_start/train", "stream/train", "sources/train", "parquet/train",
                                           "from_libtorch/after", "training_options/train", "training_options/float8",
                                           "training_options/captured_step", "sharded/train", "parallel/train",
                                           "pipeline/train", "large_model/train", "guide/train", "own_law/law"),
                         [](const auto& info) {
                           auto name = info.param;
                           std::replace(name.begin(), name.end(), '/', '_');
                           return name;
                         });

TEST(PipelineExampleTest, StagesOnSimulatedAndRealRanksEndWithTheSameLoss) {
  const auto pp = std::to_string(kProcesses);
  const auto simulated = simulate("pipeline/train", kProcesses, {pp, "zbv"});
  EXPECT_EQ(simulated.exit_code, 0) << simulated.error;
  const auto processes = run_processes("pipeline/train", {pp, "zbv"});
  for (const auto& rank : processes) EXPECT_EQ(rank.exit_code, 0) << rank.error;
  EXPECT_EQ(processes[0].output, simulated.output);
}

TEST(ElasticExampleTest, AnyNumberOfRanksPrintsTheSameBits) {
  const auto alone = simulate("elastic/train", 1);
  EXPECT_EQ(alone.exit_code, 0) << alone.error;
  for (const int ranks : {3, 8}) EXPECT_EQ(simulate("elastic/train", ranks).output, alone.output);
  const auto processes = run_processes("elastic/train");
  for (const auto& rank : processes) EXPECT_EQ(rank.exit_code, 0) << rank.error;
  EXPECT_EQ(processes[0].output, alone.output);
}

// The installed completion files must equal what the program prints, or new commands would not be completed.
TEST(InstalledProgramsTest, ProgramsRunAndShellsFindTheirCompletion) {
  for (const auto* program : {"sim-run", "sim-calibrate", "accel"}) {
    const auto help = run_command({installed("bin") + "/" + program, "--help"});
    EXPECT_EQ(help.exit_code, 0) << help.error;
    EXPECT_THAT(help.output, HasSubstr(program));
  }
  for (const auto& [shell, file] : {std::pair("bash", "share/bash-completion/completions/accel"),
                                    std::pair("zsh", "share/zsh/site-functions/_accel")}) {
    const auto printed = run_command({installed("bin/accel"), "--completion", shell});
    EXPECT_THAT(printed.output, HasSubstr("data-check"));
    std::ifstream in(installed(file));
    EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), printed.output) << file;
  }
}

// Users test their own code on simulated ranks with their own test framework; both common ones are built here.
TEST(UnitTestsTest, RunOnSimulatedRanksUnderBothFrameworks) {
  for (const auto* program : {"unit_tests/with_googletest", "unit_tests/with_catch2"}) {
    const auto run = run_command({built(program)});
    EXPECT_EQ(run.exit_code, 0) << program << "\n" << run.output << run.error;
  }
}

// The law of the example as a GoogleTest program; ExampleTest runs it on processes and on simulated ranks.
TEST(OwnLawTest, HoldsOnSimulatedRanksAndOnGlooThreads) {
  const auto run = run_command({built("own_law/law_test")});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, HasSubstr("[  PASSED  ] 2 tests"));
}

TEST(OwnLawTest, RunsUnderSimRunOverGloo) {
  const auto run =
      run_command({installed("bin/sim-run"), "--backend", "gloo", "--ranks", "2", "--", built("own_law/law")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_EQ(run.output, simulate("own_law/law", 2).output);
}

// Without any launcher an example is a plain program with one rank.
TEST_P(ExampleTest, RunsAlone) {
  const auto run = run_command({built(GetParam())});
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
  EXPECT_THAT(run.output, Not(IsEmpty()));
}

TEST_P(ExampleTest, RunsOnEightSimulatedRanks) {
  const auto run = simulate(GetParam(), 8);
  EXPECT_EQ(run.exit_code, 0) << run.output << run.error;
}

TEST_P(ExampleTest, PrintsTheSameBitsOnFourProcessesAndOnFourSimulatedRanks) {
  const auto real = run_processes(GetParam());
  for (int rank = 0; rank < kProcesses; ++rank) {
    EXPECT_EQ(real.at(rank).exit_code, 0) << "rank " << rank << ": " << real.at(rank).error;
    EXPECT_EQ(real.at(rank).output.empty(), rank > 0) << "rank " << rank;
  }
  // A stronger check than equal losses: the printed digits of real and simulated ranks must be the same text.
  const auto simulated = simulate(GetParam(), kProcesses);
  EXPECT_EQ(simulated.exit_code, 0) << simulated.error;
  EXPECT_EQ(simulated.output, real.front().output);
  EXPECT_NE(simulated.output, run_command({built(GetParam())}).output) << "four ranks see other batches than one";
}

// before.cpp is plain LibTorch and after.cpp its port, so they must print the same numbers on one process.
TEST(FromLibtorchTest, BothPrintTheSameNumbersOnOneProcess) {
  const auto before = run_command({built("from_libtorch/before")}), after = run_command({built("from_libtorch/after")});
  EXPECT_EQ(before.exit_code, 0) << before.error;
  EXPECT_THAT(before.output, HasSubstr("epoch 4 loss"));
  EXPECT_EQ(before.output, after.output);
}

// The example prints three epochs for each backend, line by line the same, and then the message of a failed rank.
TEST(LauncherTest, AFunctionRunsOnProcessesAndOnSimulatedRanksWithTheSameBits) {
  const auto run = run_command({built("launcher/train")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
  std::istringstream in(run.output);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 7U) << run.output;
  for (int epoch = 0; epoch < 3; ++epoch) {
    EXPECT_THAT(lines[epoch], HasSubstr("on 4 ranks: loss"));
    EXPECT_EQ(lines[epoch], lines[epoch + 3]);
  }
  EXPECT_THAT(lines[6], HasSubstr("a failing rank is reported: launch of 'train': rank "));
}

// The resume example: new processes continue where the previous ones stopped.
// --- the resume example: new processes continue where the last ones stopped ------------------------------------------

constexpr const char* kToTheEnd = "1000";

fs::path empty_folder(const std::string& name) {
  auto folder = work_folder() / "states" / name;  // beside no built example
  fs::remove_all(folder);
  fs::create_directories(folder);
  return folder;
}

// Runs the example for some steps in a folder, on simulated ranks or in processes, and returns its output.
std::string resume(const std::string& kind, const fs::path& folder, const std::string& steps, int ranks = kProcesses) {
  if (kind == "simulated") {
    const auto run = simulate("resume/train", ranks, {folder.string(), steps});
    EXPECT_EQ(run.exit_code, 0) << run.error;
    return run.output;
  }
  const auto runs = run_processes("resume/train", {folder.string(), steps});
  for (const auto& run : runs) EXPECT_EQ(run.exit_code, 0) << run.error;
  return runs.front().output;
}

// The printed lines of five processes, each killed after some steps, must add up to those of one process.
TEST(ResumeTest, NewProcessesContinueWhereTheLastOnesStopped) {
  const auto uncut = resume("simulated", empty_folder("uncut"), kToTheEnd);
  EXPECT_EQ(std::count(uncut.begin(), uncut.end(), '\n'), 3 * 4);  // 50 samples in steps of 4 x 4
  for (const std::string kind : {"simulated", "processes"}) {
    const auto folder = empty_folder("cut_" + kind);
    std::string cut;
    for (const auto* steps : {"1", "2", "1", "3", kToTheEnd})
      cut += resume(kind, folder, steps);  // within an epoch, again, at its end, after it
    EXPECT_EQ(cut, uncut) << kind;
  }
}

// A user may reproduce a training of real processes on the simulator from its last checkpoint.
TEST(ResumeTest, StatesOfTheSimulatorAndOfProcessesAreInterchangeable) {
  const auto folder = empty_folder("mixed");
  auto mixed = resume("simulated", folder, "2");
  mixed += resume("processes", folder, "3");
  mixed += resume("simulated", folder, kToTheEnd);
  EXPECT_EQ(mixed, resume("processes", empty_folder("uncut"), kToTheEnd));
}

// The samples of epoch 0 are 1000 to 1049, and each must appear once over both lives.
TEST(ResumeTest, AnotherNumberOfRanksSeesTheRestOfTheEpochOnce) {
  const auto folder = empty_folder("elastic");
  auto output = resume("simulated", folder, "2", /*ranks=*/4);
  output += resume("simulated", folder, kToTheEnd, /*ranks=*/3);
  std::istringstream lines(output);
  std::vector<int> seen;
  for (std::string line, word; std::getline(lines, line);) {
    std::istringstream words(line);
    int epoch = 0, number = 0;
    words >> word >> epoch;
    while (epoch == 0 && words >> number) seen.push_back(number);  // up to the word "step"
  }
  std::sort(seen.begin(), seen.end());
  ASSERT_EQ(seen.size(), 50U);
  for (int number = 0; number < 50; ++number) EXPECT_EQ(seen[number], 1000 + number);
}

// Returns the diff without the two lines that name the files and their times.
std::string body_of_diff(const std::string& diff) { return diff.substr(std::min(diff.find("\n@@") + 1, diff.size())); }

// The README shows the port as a diff. This keeps it equal to the two files.
TEST(FromLibtorchTest, ReadmeShowsTheDifferenceOfTheTwoFiles) {
  std::ifstream in(source("reference/examples/from_libtorch/README.md"));
  const std::string readme(std::istreambuf_iterator<char>(in), {});
  const std::string open = "```diff\n";
  const auto begin = readme.find(open);
  ASSERT_NE(begin, std::string::npos);
  const auto shown = readme.substr(begin + open.size(), readme.find("\n```", begin) + 1 - begin - open.size());
  const auto real = run_command({"diff", "-u", source("reference/examples/from_libtorch/before.cpp"),
                                 source("reference/examples/from_libtorch/after.cpp")});
  ASSERT_EQ(real.exit_code, 1) << real.error;
  EXPECT_EQ(body_of_diff(shown), body_of_diff(real.output));
}

// Built against the installed headers only, so a header that is not installed or not self-contained fails here.
TEST(PackageTest, SimulatorHeadersServeAUsersTest) {
  const auto run = run_command({built("simulation/simulation")});
  EXPECT_EQ(run.exit_code, 0) << run.error;
}

TEST(PackageTest, InstalledCommandsRun) {
  for (const auto* program : {"bin/sim-run", "bin/accel"})
    EXPECT_EQ(run_command({installed(program), "--help"}).exit_code, 0) << program;
}

// The build's folders, and the cache with its LibTorch, may be gone or on another machine.
TEST(PackageTest, InstalledProgramsNeedNoFolderOfTheBuild) {
  for (const auto* program : {"bin/sim-run", "bin/accel"}) {
    const auto header = run_command({"readelf", "-d", installed(program)});
    ASSERT_EQ(header.exit_code, 0) << header.error;
    EXPECT_THAT(header.output, AllOf(HasSubstr("RUNPATH"), HasSubstr("[$ORIGIN/../lib/accel/torch/lib"))) << program;
    const auto libraries = run_command({"ldd", installed(program)});
    EXPECT_THAT(libraries.output,
                AllOf(HasSubstr(installed("bin/../lib/accel/torch/lib/libtorch_cpu.so")), Not(HasSubstr("not found"))));
  }
}

// All missing packages are named at once, so that a user installs them with one command.
TEST(PackageTest, AllThatIsMissingIsNamedWithItsDebianPackages) {
  const auto run =
      configure("quick_start", {"-B", built("missing"), "-DCMAKE_DISABLE_FIND_PACKAGE_TBB=ON",
                                "-DCMAKE_DISABLE_FIND_PACKAGE_yaml-cpp=ON", "-DACCEL_TORCH_ROOT=/does/not/exist"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.error, AllOf(HasSubstr("TBB was not found: on Debian, apt-get install libtbb-dev"),
                               HasSubstr("apt-get install libyaml-cpp-dev"),
                               HasSubstr("LibTorch 2.11 was not found in /does/not/exist")));
  EXPECT_THAT(run.error, Not(HasSubstr("libmd-dev")));
}

// Only programs that link accel::testing need GoogleTest and RapidCheck.
TEST(PackageTest, OnlyTheComponentTestingNeedsTestLibraries) {
  const std::vector<std::string> without{"-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON",
                                         "-DCMAKE_DISABLE_FIND_PACKAGE_rapidcheck=ON"};
  const auto options_for = [&](const std::string& folder) { return command_of({"-B", built(folder)}, without); };
  EXPECT_EQ(configure("quick_start", options_for("without_tests")).exit_code, 0);
  const auto testing = configure("own_law", options_for("missing_tests"));
  EXPECT_EQ(testing.exit_code, 1);
  EXPECT_THAT(testing.error,
              AllOf(HasSubstr("GTest was not found: on Debian, apt-get install libgtest-dev"),
                    HasSubstr("rapidcheck was not found: on Debian, apt-get install librapidcheck-dev")));
}

}  // namespace
}  // namespace accel::testing
