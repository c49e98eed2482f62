// The Debian package that cpack writes, unpacked into a folder: its programs run, and a project outside of the tree
// builds against it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/programs/support/run_command.hpp"
#include "tests/support/budget.hpp"

namespace accel::testing::debian_package_test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

fs::path build_folder() { return fs::path(bin("")).parent_path().parent_path(); }
fs::path work_folder() { return build_folder() / "debian_package"; }
std::string unpacked(const std::string& path) { return (work_folder() / "root/usr" / path).string(); }

// Runs a command that must succeed, and returns its output.
std::string output_of(const std::vector<std::string>& command) {
  const auto run = run_command(command, {.limit = std::chrono::seconds(1000)});
  EXPECT_EQ(run.exit_code, 0) << command.front() << "\n" << run.output << run.error;
  return run.output;
}

// Packs and unpacks LibTorch.
TEST(DebianPackageTest, AProjectBuildsAndRunsAgainstTheUnpackedPackage) {
  if (num_cases(1) == 1) GTEST_SKIP() << "writes 2 GB; run with ./dev test --long";
  fs::remove_all(work_folder());
  output_of({ACCEL_CPACK, "-G", "DEB", "--config", (build_folder() / "CPackConfig.cmake").string(), "-B",
             work_folder().string(), "-D", "CPACK_DEBIAN_FILE_NAME=accel.deb", "-D",
             "CPACK_DEBIAN_COMPRESSION_TYPE=none"});
  const auto package = (work_folder() / "accel.deb").string();
  // dpkg-shlibdeps finds them in the programs. Suggested are the packages with which a program is compiled.
  EXPECT_THAT(output_of({"dpkg-deb", "--field", package, "Depends"}),
              AllOf(HasSubstr("libtbb12 "), HasSubstr("libhwloc15 "), HasSubstr("libmd0 "), Not(HasSubstr("libssl")),
                    Not(HasSubstr("libfmt"))));
  EXPECT_THAT(output_of({"dpkg-deb", "--field", package, "Suggests"}), HasSubstr("libtbb-dev"));
  output_of({"dpkg-deb", "--extract", package, (work_folder() / "root").string()});

  EXPECT_EQ(output_of({unpacked("bin/accel"), "--version"}), output_of({bin("accel"), "--version"}));
  EXPECT_THAT(output_of({"ldd", unpacked("bin/sim-run")}),
              AllOf(HasSubstr(unpacked("bin/../lib/accel/torch/lib/libtorch_cpu.so")), Not(HasSubstr("not found"))));
  const auto project = (work_folder() / "project").string();
  output_of({ACCEL_CMAKE, "-G", "Ninja", "-S", source("reference/examples/quick_start"), "-B", project,
             "-DCMAKE_PREFIX_PATH=" + unpacked(""), "-DCMAKE_CXX_COMPILER=" ACCEL_COMPILER});
  output_of({ACCEL_CMAKE, "--build", project});
  EXPECT_THAT(output_of({project + "/train"}), HasSubstr("epoch 2 accuracy"));
  EXPECT_THAT(output_of({unpacked("bin/sim-run"), "--ranks", "4", "--", project + "/train"}),
              HasSubstr("epoch 2 accuracy"));
  if (!HasFailure()) fs::remove_all(work_folder());
}

}  // namespace
}  // namespace accel::testing::debian_package_test
