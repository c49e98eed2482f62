// Measures the time from `accel launch` to the end of the first optimizer step of ranks over Gloo, and the same for
// Accelerate's launcher; also the size of a user's program and the time to compile it.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "bench/printed_json.hpp"
#include "bench/program.hpp"
#include "reference/files/temporary_folder.hpp"

namespace accel::bench {
namespace {

std::filesystem::path program_folder() { return std::filesystem::read_symlink("/proc/self/exe").parent_path(); }

// Seconds from the launcher's start to the end of the first step. std::chrono::steady_clock is the same clock in all
// processes of a machine, so the rank's reading can be compared with ours.
double ours(int ranks) {
  const auto started = std::chrono::steady_clock::now().time_since_epoch();
  const auto command =
      fmt::format("{0}/accel launch --cpu --num_processes {1} --main_process_port 0 --no_prefix {0}/first_step",
                  program_folder().string(), ranks);
  const auto ended = std::chrono::nanoseconds(printed_json(command).at("first_step_at").get<std::int64_t>());
  return std::chrono::duration<double>(ended - started).count();
}

double theirs(const std::string& python, int ranks) {
  return printed_json(fmt::format("{} {}", python, ranks)).at("seconds").get<double>();
}

double size_of_program() { return static_cast<double>(std::filesystem::file_size(program_folder() / "first_step")); }

// Compiles first_step.cpp as a user would: optimized, without precompiled headers and compiler cache.
double seconds_to_compile() {
  const TemporaryFolder folder;
  const auto command = fmt::format("{} -o {}/first_step.o", ACCEL_COMPILE_FIRST_STEP, folder.path());
  int status = 0;
  const double seconds = seconds_of([&] { status = std::system(command.c_str()); });
  if (status != 0) throw Error("failed: " + command);
  return seconds;
}

Rows all_rows(const std::string& python) {
  Rows rows{{.name = "launch/2_ranks/accel", .measure = [] { return ours(2); }, .compared = true},
            {.name = "launch/4_ranks/accel", .measure = [] { return ours(4); }, .beside = "launch/4_ranks/accelerate"},
            {.name = "user_program/size", .measure = size_of_program, .unit = "bytes", .compared = true},
            {.name = "user_program/compile_time", .measure = seconds_to_compile}};
  if (!python.empty())
    rows.push_back({.name = "launch/4_ranks/accelerate", .measure = [python] { return theirs(python, 4); }});
  return rows;
}

}  // namespace
}  // namespace accel::bench

int main(int argc, char** argv) {
  accel::bench::Program program("launch_bench",
                                "Measures the time from `accel launch` to the end of the first optimizer step of ranks "
                                "over Gloo, and size and compile time of a user's program.");
  std::string python;
  program.add("--python", python, "Command of a Python with Accelerate that runs bench/accelerate_launch.py");
  return program.run(argc, argv, [&] { return accel::bench::all_rows(python); });
}
