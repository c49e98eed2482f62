// A project that contains accel, by FetchContent from a local path: it gets the library alone, and its program runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::embedding_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;

// The same folder in every run, so that a compiler cache recognizes the commands.
fs::path work_folder() { return fs::path(bin("")).parent_path().parent_path() / "embedding"; }

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

CommandResult cmake(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), ACCEL_CMAKE);
  return run_command(arguments, {.limit = std::chrono::seconds(1800)});
}

void configure() {
  write(work_folder() / "source/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.25)\nproject(embedding LANGUAGES CXX)\ninclude(FetchContent)\n"
        "FetchContent_Declare(accel SOURCE_DIR " +
            source("") +
            ")\nFetchContent_MakeAvailable(accel)\nadd_executable(train train.cpp)\n"
            "target_link_libraries(train PRIVATE accel::accel)\n");
  fs::copy(source("reference/examples/quick_start/train.cpp"), work_folder() / "source/train.cpp",
           fs::copy_options::overwrite_existing);
  const auto done =
      cmake({"-G", "Ninja", "-S", (work_folder() / "source").string(), "-B", (work_folder() / "build").string(),
             "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" ACCEL_TORCH,
             // What only programs, tests and benchmarks need is not required.
             "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_rapidcheck=ON",
             "-DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"});
  ASSERT_EQ(done.exit_code, 0) << done.output << done.error;
}

TEST(EmbeddingTest, OnlyTheLibraryIsBuilt) {
  configure();
  const auto steps = run_command({"ninja", "-C", (work_folder() / "build").string(), "-n", "train"});
  ASSERT_EQ(steps.exit_code, 0) << steps.output << steps.error;
  EXPECT_THAT(steps.output, HasSubstr("Linking CXX executable train"));
  for (const auto* absent : {"tests/", "properties/", "bench/", "sim_run", "experiments", "gtest"})
    EXPECT_THAT(steps.output, Not(HasSubstr(absent)));
  // A part of the library, which includes no LibTorch and compiles in seconds.
  const auto engine = cmake({"--build", (work_folder() / "build").string(), "--target", "accel_sim_engine"});
  EXPECT_EQ(engine.exit_code, 0) << engine.output << engine.error;
}

// Without the check the first error would be one of many in LibTorch's headers.
TEST(EmbeddingTest, AnUnsupportedLibTorchIsRejectedByItsVersion) {
  const auto root = work_folder() / "old_torch";
  write(root / "lib/libtorch_cpu.so", "");
  // Releases before 2.10 have the version in this header.
  write(root / "include/torch/csrc/api/include/torch/version.h",
        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n");
  const auto run = cmake({"-G", "Ninja", "-S", source(""), "-B", (work_folder() / "old_torch_build").string(),
                          "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" + root.string()});
  EXPECT_EQ(run.exit_code, 1);
  // CMake wraps the lines of a message.
  EXPECT_THAT(std::regex_replace(run.error, std::regex("\\s+"), " "),
              HasSubstr("is 2.9.1, which accel does not support: expected 2.11 (./dev build), or 2.15 (./dev build "
                        "--torch 2.15)"));
}

TEST(EmbeddingTest, AMissingArrowIsAnErrorThatNamesTheOption) {
  const auto run = cmake({"-G", "Ninja", "-S", source(""), "-B", (work_folder() / "no_arrow_build").string(),
                          "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" ACCEL_TORCH,
                          "-DACCEL_ARROW_ROOT=" + (work_folder() / "no_arrow").string()});
  EXPECT_EQ(run.exit_code, 1);
  const auto error = std::regex_replace(run.error, std::regex("\\s+"), " ");
  EXPECT_THAT(error, HasSubstr("Apache Arrow was not found in " + (work_folder() / "no_arrow").string()));
  EXPECT_THAT(error, HasSubstr("or set ACCEL_ARROW=OFF to build without Parquet"));
}

// Compiles the whole library once more: about ten minutes on two cores.
TEST(EmbeddingTest, TheProgramRuns) {
  if (num_cases(1) == 1) GTEST_SKIP() << "run with ./dev test --long";
  configure();
  const auto build = cmake({"--build", (work_folder() / "build").string(), "--target", "train"});
  ASSERT_EQ(build.exit_code, 0) << build.output << build.error;
  EXPECT_EQ(run_command({(work_folder() / "build/train").string()}).exit_code, 0);
}

}  // namespace
}  // namespace accel::testing::embedding_test
