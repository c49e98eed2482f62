// `accel test`: launches this program again as `accel test --inner`, by the same code as `accel launch`, so that a
// success means that the user's own program will start, find its peers and compute with them.

#include <filesystem>
#include <iostream>
#include <string_view>

#include "reference/core/errors.hpp"
#include "reference/run.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/accel/launch_flags.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/runtime/exit_code.hpp"

namespace accel::programs {
namespace {

constexpr const char* kTestUsage =
    "accel test [flags of accel launch]   Tests the setup on which `accel launch` with these flags would run a "
    "program\n"
    "accel test --inner                   Runs one rank under a launcher's variables, as in mpirun -n 4 accel test "
    "--inner\n";

}  // namespace

int test_main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--inner") {
    check_config(argc == 2, "accel test --inner: accepts no other arguments; a launcher's variables define the rank");
    return run(argc, argv, run_self_test);
  }
  // The flags are those of launch, so that no CLI11 app exists that could list them.
  if (argc == 2 && argv[1] == std::string_view(kListOptions)) {
    list_launch_flags();
    return kSuccess;
  }
  auto flags = parse_launch_flags({argv + 1, argv + argc}, /*needs_program=*/false);
  if (flags.has("help")) {
    std::cout << kTestUsage;
    return kSuccess;
  }
  check_config(flags.command.empty(), "accel test: unexpected argument '{}'; the test runs no program",
               flags.command.empty() ? "" : flags.command.front());
  // /proc/self/exe instead of argv[0]: ranks must run this very binary even if PATH or the working directory changes.
  flags.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "test", "--inner"};
  flags.given.emplace("no_prefix", "true");  // only rank 0 prints
  const int code = run_launch(flags, "accel test");
  if (code == kSuccess && !flags.has("dry_run"))
    std::cout << "Test is a success! You are ready for your distributed training!" << std::endl;
  return code;
}

}  // namespace accel::programs
