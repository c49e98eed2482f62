// `accel test`: launches this program again as `accel test --inner`, by the same code as `accel launch`, so that a
// success means that the user's own program will start, find its peers and compute with them.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <string_view>

#include "reference/core/errors.hpp"
#include "reference/run.hpp"
#include "sim/programs/accel/commands.hpp"
#include "sim/programs/accel/launch_flags.hpp"
#include "sim/programs/command_line/command_line.hpp"
#include "sim/programs/equivalence/equivalence_case.hpp"
#include "sim/programs/equivalence/equivalence_suite.hpp"
#include "sim/programs/rehearsal/exit_code.hpp"

namespace accel::programs {
namespace {

constexpr const char* kTestUsage =
    "accel test [flags of accel launch]   Tests the setup on which `accel launch` with these flags would run a "
    "program\n"
    "accel test --equivalence [OPTIONS] [flags of accel launch]\n"
    "                                     Runs generated cases on these ranks and on simulated ranks, and compares "
    "them\n"
    "  --cases N                          Cases per law (default: 100)\n"
    "  --seed S                           Seed of the cases (default: 1)\n"
    "  --law LAW                          sharding, even_batches, gather_for_metrics, rng_synchronization or training; "
    "default: all\n"
    "  --case JSON                        Run only this case, as a failure prints it\n"
    "  --out DIR                          Write one JSON file per law to this folder: the cases that were compared\n"
    "accel test --inner [--equivalence [OPTIONS]]\n"
    "                                     Runs one rank under a launcher's variables, as in mpirun -n 4 accel test "
    "--inner\n";

constexpr const char* kEquivalence = "--equivalence";

// Reads the suite's own options, and returns the other arguments.
std::vector<std::string> read_equivalence_options(std::vector<std::string> arguments, EquivalenceOptions& options) {
  CLI::App app;
  app.set_help_flag();
  app.allow_extras();
  app.add_flag(kEquivalence);
  app.add_option("--cases", options.cases)->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed);
  app.add_option("--law", options.laws)
      ->check(CLI::IsMember(std::vector<std::string>(std::begin(kLaws), std::end(kLaws))));
  auto* const only_case = app.add_option("--case", options.only_case);
  app.add_option("--out", options.out)->excludes(only_case)->check(CLI::ExistingDirectory);
  std::reverse(arguments.begin(), arguments.end());  // CLI11 expects them like this
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& error) {
    throw ConfigError(std::string("accel test --equivalence: ") + error.what());
  }
  if (options.only_case) read_case(*options.only_case);  // reports problems before any rank starts
  return app.remaining();
}

// One rank of `accel test`.
int run_inner(int argc, char** argv) {
  EquivalenceOptions options;
  const auto rest = read_equivalence_options({argv + 2, argv + argc}, options);
  check_config(rest.empty(), "accel test --inner: unexpected argument '{}'; a launcher's variables define the rank",
               rest.empty() ? "" : rest.front());
  if (argc == 2) return run(argc, argv, run_self_test);
  return run(argc, argv, [&](int, char**) { return run_equivalence(options) ? kSuccess : kFailure; });
}

// Launches this program again. /proc/self/exe instead of argv[0]: ranks must run this very binary even if PATH or the
// working directory changes.
int launch_again(LaunchFlags flags, const std::vector<std::string>& arguments, const char* success) {
  check_config(flags.command.empty(), "accel test: unexpected argument '{}'; the test runs no program",
               flags.command.empty() ? "" : flags.command.front());
  flags.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "test", "--inner"};
  flags.command.insert(flags.command.end(), arguments.begin(), arguments.end());
  flags.given.emplace("no_prefix", "true");  // only rank 0 prints
  const int code = run_launch(flags, "accel test");
  if (code == kSuccess && !flags.has("dry_run")) std::cout << success << std::endl;
  return code;
}

}  // namespace

int test_main(int argc, char** argv) {
  if (argc > 1 && std::string_view(argv[1]) == "--inner") return run_inner(argc, argv);
  // The flags are those of launch, so that no CLI11 app exists that could list them.
  if (argc == 2 && argv[1] == std::string_view(kListOptions)) {
    list_launch_flags();
    return kSuccess;
  }
  std::vector<std::string> arguments(argv + 1, argv + argc), passed_on;
  if (std::find(arguments.begin(), arguments.end(), kEquivalence) != arguments.end()) {
    EquivalenceOptions options;
    auto rest = read_equivalence_options(arguments, options);
    passed_on = {kEquivalence, "--cases", std::to_string(options.cases), "--seed", std::to_string(options.seed)};
    for (const auto& law : options.laws) passed_on.insert(passed_on.end(), {"--law", law});
    if (options.only_case) passed_on.insert(passed_on.end(), {"--case", *options.only_case});
    if (options.out) passed_on.insert(passed_on.end(), {"--out", *options.out});
    arguments = std::move(rest);
  }
  const auto flags = parse_launch_flags(arguments, /*needs_program=*/false);
  if (flags.has("help")) {
    std::cout << kTestUsage;
    return kSuccess;
  }
  return launch_again(flags, passed_on,
                      passed_on.empty() ? "Test is a success! You are ready for your distributed training!"
                                        : "These ranks and simulated ranks are equivalent.");
}

}  // namespace accel::programs
