// A training program that fails in the way its first argument says. Leaves a file named for its process in the folder
// of its second argument, so that the test can look for processes that are left.
#include <signal.h>
#include <unistd.h>

#include <ATen/ops/full.h>

#include <accel/accel.hpp>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int kSteps = 20;
constexpr int kFaultStep = 7;

void all_reduce(const accel::RankContext& context) {
  auto tensor = at::full({1000}, context.rank + 1.0);
  context.world.all_reduce(tensor).wait();
  const auto sum = tensor[0].item<double>();
  accel::ensure(sum == context.world_size * (context.world_size + 1) / 2.0, "all_reduce gave {}", sum);
}

void fault(const std::string& mode) {
  if (mode == "throw") throw std::runtime_error("the ink has run out");
  if (mode == "throw_config") throw accel::ConfigError("ink: expected black, got 'none'");
  if (mode == "die") raise(SIGKILL);
  if (mode == "hang") pause();
  if (mode == "exit") std::exit(3);
  if (mode == "exit_in_thread") std::thread([] { std::exit(3); }).join();
}

// As a program's own --help: buffered output, and the end from inside.
void exit_as_help_does(const std::string& mode) {
  const std::vector<int> on_the_stack(1000);
  std::cout << "usage: faulty_program MODE FOLDER\n";
  std::exit(mode == "help" ? 0 : static_cast<int>(on_the_stack.size()) / 250);
}

int train(int argc, char** argv) {
  const std::string mode = argv[1];
  auto& context = accel::current_rank();
  std::ofstream(std::filesystem::path(argv[2]) / std::to_string(getpid()));
  if (mode == "help" || mode == "bad_usage") exit_as_help_does(mode);
  for (int step = 0; step < kSteps; ++step) {
    if (context.rank == 1 && step == kFaultStep && mode == "leave") return 0;
    if (context.rank == 1 && step == kFaultStep) fault(mode);
    // The one that skips waits in the barrier below, which the others do not reach.
    if (context.rank == 1 && step == kSteps - 1 && mode == "skip") continue;
    all_reduce(context);
  }
  context.world.barrier();
  static std::atomic<int> num_done{0};  // of all ranks of this process
  if (mode == "race")
    context.print("rank " + std::to_string(context.rank) + " is number " + std::to_string(num_done++) + "\n");
  context.print("rank " + std::to_string(context.rank) + " of " + std::to_string(context.world_size) + " has " +
                std::to_string(kSteps) + " sums\n");
  return mode == "code" && context.rank == 1 ? 3 : 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
