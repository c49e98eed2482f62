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
using ::testing::UnorderedElementsAre;

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

void configure(const std::string& folder, const std::vector<std::string>& options = {}) {
  write(work_folder() / "source/CMakeLists.txt",
        "cmake_minimum_required(VERSION 3.25)\nproject(embedding LANGUAGES CXX)\ninclude(FetchContent)\n"
        "FetchContent_Declare(accel SOURCE_DIR " +
            source("") +
            ")\nFetchContent_MakeAvailable(accel)\nadd_executable(train train.cpp)\n"
            "target_link_libraries(train PRIVATE accel::accel)\n");
  fs::copy(source("reference/examples/quick_start/train.cpp"), work_folder() / "source/train.cpp",
           fs::copy_options::overwrite_existing);
  std::vector<std::string> arguments{
      "-G", "Ninja", "-S", (work_folder() / "source").string(), "-B", (work_folder() / folder).string(),
      "-DCMAKE_BUILD_TYPE=Release", "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" ACCEL_TORCH,
      // What only programs, tests and benchmarks need is not required.
      "-DCMAKE_DISABLE_FIND_PACKAGE_GTest=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_rapidcheck=ON",
      "-DCMAKE_DISABLE_FIND_PACKAGE_benchmark=ON", "-DCMAKE_DISABLE_FIND_PACKAGE_CLI11=ON"};
  arguments.insert(arguments.end(), options.begin(), options.end());
  const auto done = cmake(arguments);
  ASSERT_EQ(done.exit_code, 0) << done.output << done.error;
}

TEST(EmbeddingTest, OnlyTheLibraryIsBuilt) {
  configure("build");
  const auto steps = run_command({"ninja", "-C", (work_folder() / "build").string(), "-n", "train"});
  ASSERT_EQ(steps.exit_code, 0) << steps.output << steps.error;
  EXPECT_THAT(steps.output, HasSubstr("Linking CXX executable train"));
  for (const auto* absent : {"tests/", "properties/", "bench/", "sim_run", "experiments", "gtest"})
    EXPECT_THAT(steps.output, Not(HasSubstr(absent)));
  // A part of the library, which includes no LibTorch and compiles in seconds.
  const auto engine = cmake({"--build", (work_folder() / "build").string(), "--target", "accel_sim_engine"});
  EXPECT_EQ(engine.exit_code, 0) << engine.output << engine.error;
}

// --- versions of LibTorch that are not known -------------------------------------------------------------------------

CommandResult configure_against(const fs::path& torch, const std::string& folder) {
  return cmake({"-G", "Ninja", "-S", source(""), "-B", (work_folder() / folder).string(),
                "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" + torch.string()});
}

// CMake wraps the lines of a message.
std::string in_one_line(const std::string& text) { return std::regex_replace(text, std::regex("\\s+"), " "); }

// Without the probe the first error would be one of many in LibTorch's headers.
TEST(EmbeddingTest, ALibTorchThatDoesNotCompileIsRejectedWithTheFirstError) {
  const auto root = work_folder() / "old_torch";
  write(root / "lib/libtorch_cpu.so", "");
  write(root / "lib/libc10.so", "");
  // Releases before 2.10 have the version in this header.
  write(root / "include/torch/csrc/api/include/torch/version.h",
        "#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 9\n#define TORCH_VERSION_PATCH 1\n");
  const auto run = configure_against(root, "old_torch_build");
  EXPECT_EQ(run.exit_code, 1);
  const auto error = in_one_line(run.error);
  EXPECT_THAT(error, HasSubstr("is 2.9.1. The tests of accel pass with 2.11, "));
  EXPECT_THAT(error, HasSubstr("and this version does not compile with it: "));
  EXPECT_THAT(error, HasSubstr("fatal error: '"));
}

// The LibTorch of this build under another version's number.
TEST(EmbeddingTest, AnUnknownLibTorchIsTriedAndAccepted) {
  const auto root = work_folder() / "next_torch";
  fs::remove_all(root);
  fs::create_directories(root / "torch");
  const fs::path real = ACCEL_TORCH_PREFIX;
  ASSERT_EQ(run_command({"cp", "-rs", (real / "include").string(), (root / "torch").string()}).exit_code, 0);
  fs::create_directory_symlink(real / "lib", root / "torch/lib");
  fs::create_directory_symlink(real.parent_path() / "nvidia", root / "nvidia");
  const auto version = root / "torch/include/torch/headeronly/version.h";
  fs::remove(version);
  write(version,
        "#pragma once\n#define TORCH_VERSION_MAJOR 2\n#define TORCH_VERSION_MINOR 99\n"
        "#define TORCH_VERSION_PATCH 0\n#define TORCH_VERSION \"2.99.0\"\n");
  const auto run = configure_against(root, "next_torch_build");
  EXPECT_EQ(run.exit_code, 0) << run.error;
  EXPECT_THAT(in_one_line(run.error), HasSubstr("is 2.99.0. The tests of accel pass with 2.11, "));
  EXPECT_THAT(in_one_line(run.error), HasSubstr("It was tried: it compiles"));
}

TEST(EmbeddingTest, AMissingArrowIsAnErrorThatNamesTheOption) {
  const auto run = cmake({"-G", "Ninja", "-S", source(""), "-B", (work_folder() / "no_arrow_build").string(),
                          "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" ACCEL_TORCH,
                          "-DACCEL_ARROW_ROOT=" + (work_folder() / "no_arrow").string()});
  EXPECT_EQ(run.exit_code, 1);
  const auto error = in_one_line(run.error);
  EXPECT_THAT(error, HasSubstr("Apache Arrow was not found in " + (work_folder() / "no_arrow").string()));
  EXPECT_THAT(error, HasSubstr("or set ACCEL_ARROW=OFF to build without Parquet"));
}

// --- libraries that options drop -------------------------------------------------------------------------------------

const std::vector<std::string> kDropped{"-DACCEL_PNG=OFF", "-DACCEL_JPEG=OFF", "-DACCEL_PCRE2=OFF",
                                        "-DACCEL_UTF8PROC=OFF", "-DACCEL_HWLOC=OFF"};

// The sources that take the place of those that use a library compile, and the libraries are not looked for.
TEST(EmbeddingTest, OptionsDropLibraries) {
  auto options = kDropped;
  options.insert(options.end(), {"-DACCEL_UNITY=OFF", "-DACCEL_PRECOMPILE=OFF"});  // each source separately
  configure("dropped_build", options);
  const auto steps =
      run_command({"ninja", "-C", (work_folder() / "dropped_build").string(), "-t", "commands", "train"});
  for (const auto* library : {"libpng", "libjpeg", "libpcre2", "libutf8proc", "libhwloc"})
    EXPECT_THAT(steps.output, Not(HasSubstr(library)));
  std::vector<std::string> sources, build{"ninja", "-C", (work_folder() / "dropped_build").string()};
  const std::regex pattern(R"(-o (\S+/(\w+)_absent\.cpp\.o) )");
  for (std::sregex_iterator match(steps.output.begin(), steps.output.end(), pattern), end; match != end; ++match) {
    build.push_back((*match)[1]);
    sources.push_back((*match)[2]);
  }
  EXPECT_THAT(sources, UnorderedElementsAre("decode_jpeg", "decode_png", "encode_png", "gpus", "nccl", "normalization",
                                            "text_splitter"));
  const auto built = run_command(build, {.limit = std::chrono::seconds(600)});
  EXPECT_EQ(built.exit_code, 0) << built.output;
}

TEST(EmbeddingTest, TestsNeedAllLibraries) {
  const auto run =
      cmake({"-G", "Ninja", "-S", source(""), "-B", (work_folder() / "dropped_tests").string(),
             "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER, "-DACCEL_TORCH_ROOT=" ACCEL_TORCH, "-DACCEL_PNG=OFF"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(in_one_line(run.error), HasSubstr("ACCEL_BUILD_TESTS needs ACCEL_PNG, ACCEL_JPEG"));
}

// Compiles the whole library once more: about ten minutes on two cores.
TEST(EmbeddingTest, TheProgramRunsWithoutTheDroppedLibraries) {
  if (num_cases(1) == 1) GTEST_SKIP() << "run with ./dev test --long";
  configure("program_build", kDropped);
  const auto build = cmake({"--build", (work_folder() / "program_build").string(), "--target", "train"});
  ASSERT_EQ(build.exit_code, 0) << build.output << build.error;
  EXPECT_EQ(run_command({(work_folder() / "program_build/train").string()}).exit_code, 0);
}

}  // namespace
}  // namespace accel::testing::embedding_test
