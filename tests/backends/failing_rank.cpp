// One rank of a run over real Gloo in which rank 2 fails: `failing_rank FAULT FOLDER`. Every rank writes what it
// has seen to the folder, e.g. as rank0.json, and ends with code 0, so that the launcher does not stop the others.
#include <unistd.h>

#include <accel/accel.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "tests/support/mismatched_calls.hpp"
#include "tests/support/small_training.hpp"

namespace accel::testing {
namespace {

namespace fs = std::filesystem;

constexpr int kRank = 2;
constexpr int kStep = 5;
constexpr auto kPoll = std::chrono::milliseconds(10);

fs::path file_of(const std::string& folder, int rank) {
  return fs::path(folder) / ("rank" + std::to_string(rank) + ".json");
}

// The file that the handler of SIGABRT writes: Gloo aborts some processes, and no exception reports it.
std::string abort_report_path;

[[noreturn]] void report_abort(int) {
  std::ofstream(abort_report_path) << R"({"error":"aborted","updates":0,"sums":[]})";
  _exit(0);
}

// Waits until all other ranks have written what they saw, and so outlives their timeouts.
void wait_for_other_ranks(const std::string& folder, const RankContext& rank) {
  for (int other = 0; other < rank.world_size; ++other) {
    while (other != rank.rank && !fs::exists(file_of(folder, other))) std::this_thread::sleep_for(kPoll);
  }
}

// Where in the training rank 2 fails.
TrainingPlaces places_of(const std::string& fault, const std::string& folder) {
  const auto on_rank = [](auto what) {
    return [what](RankContext& rank, int step) {
      if (rank.rank == kRank && step == kStep) what(rank);
    };
  };
  if (fault == "exits_before_collective") return {.in_hook = on_rank([](auto&) { _exit(0); })};
  if (fault == "exits_before_update") return {.before_update = on_rank([](auto&) { _exit(0); })};
  if (fault == "throws_in_hook") return {.in_hook = on_rank([](auto&) { throw std::runtime_error("no ink"); })};
  if (fault == "pauses") return {.before_step = on_rank([folder](auto& rank) { wait_for_other_ranks(folder, rank); })};
  if (fault == "hangs") {
    return {.before_step = on_rank([folder](auto& rank) {
              wait_for_other_ranks(folder, rank);
              _exit(0);
            })};
  }
  return {};
}

int run_rank(int, char** argv) {
  const std::string fault = argv[1], folder = argv[2];
  auto& rank = current_rank();
  abort_report_path = file_of(folder, rank.rank).string();
  std::signal(SIGABRT, report_abort);
  Progress progress;
  std::vector<float> sums;
  std::string error;
  try {
    if (fault.rfind("wrong_", 0) == 0) {
      sums = call_with_a_mismatch(rank, fault);
    } else {
      train(rank, progress, places_of(fault, folder));
    }
  } catch (const std::exception& exception) {
    error = exception.what();
  }
  // The file appears complete or not at all, since the other ranks wait for it.
  std::ofstream(abort_report_path + ".tmp")
      << nlohmann::json{{"error", error}, {"updates", progress.updates}, {"sums", sums}};
  fs::rename(abort_report_path + ".tmp", abort_report_path);
  _exit(0);
}

}  // namespace
}  // namespace accel::testing

int main(int argc, char** argv) { return accel::run(argc, argv, accel::testing::run_rank); }
