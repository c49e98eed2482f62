// Measures the time from `accel launch` to the end of the first optimizer step of four ranks over Gloo, and the same
// for Accelerate's launcher.
#include <fmt/format.h>

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/median.hpp"
#include "bench/printed_json.hpp"
#include "bench/program.hpp"

namespace accel::bench {
namespace {

constexpr int kRanks = 4;

// Seconds from the launcher's start to the end of the first step. std::chrono::steady_clock is the same clock in all
// processes of a machine, so the rank's reading can be compared with ours.
double ours() {
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  const auto started = std::chrono::steady_clock::now().time_since_epoch();
  const auto command = fmt::format(
      "{0}/accel launch --cpu --num_processes {1} --main_process_port 0 --no_prefix {0}/first_step", folder, kRanks);
  const auto ended = std::chrono::nanoseconds(printed_json(command).at("first_step_at").get<std::int64_t>());
  return std::chrono::duration<double>(ended - started).count();
}

double theirs(const std::string& python) {
  return printed_json(fmt::format("{} {}", python, kRanks)).at("seconds").get<double>();
}

// Both sides alternate within a round, so their ratio does not depend on the machine's load.
Json measure(const std::string& python, int rounds) {
  std::vector<double> our, their, ratios;
  for (int round = 0; round < rounds; ++round) {
    our.push_back(ours());
    if (python.empty()) continue;
    their.push_back(theirs(python));
    ratios.push_back(their.back() / our.back());
  }
  const bool has_python = !python.empty();
  return {{"ranks", kRanks},
          {"rounds", rounds},
          {"accel_seconds_to_first_step", median(our)},
          {"accelerate_seconds_to_first_step", has_python ? Json(median(their)) : Json("not measured")},
          {"ratio", has_python ? Json(median(ratios)) : Json("not measured")}};
}

}  // namespace
}  // namespace accel::bench

int main(int argc, char** argv) {
  accel::bench::Program program(
      "launch_bench",
      "Measures the time from `accel launch` to the end of the first optimizer step of four ranks over Gloo.");
  std::string python;
  int rounds = 7;
  program.add("--rounds", rounds, "Number of rounds; reports the median");
  program.add(
      "--python", python,
      "Command of a Python with Accelerate that runs bench/accelerate_launch.py; without it, reports \"not measured\"");
  if (const auto code = program.parse(argc, argv)) return *code;
  return program.report([&] { return accel::bench::measure(python, rounds); });
}
