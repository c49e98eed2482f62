// A training program that fails in the way that its first argument says. It creates a file with the number of its
// process in the folder of its second argument, so that the test can look for processes that were left running.
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <ATen/ops/full.h>

#include <accel/accel.hpp>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
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

// The volatile array keeps the compiler from turning the recursion into a loop.
// NOLINTNEXTLINE(misc-no-recursion)
int overflow_stack(int depth) {
  volatile char bytes[4096];
  bytes[depth % 4096] = 1;
  return depth < 0 ? 0 : overflow_stack(depth + 1) + bytes[depth % 4096];
}

// What a program must not do between a call and its wait.
void touch_early(const accel::RankContext& context, const std::string& mode) {
  auto tensor = at::full({1000}, 1.0);
  auto work = context.world.all_reduce(tensor);
  if (mode == "read_early") static_cast<void>(tensor + 1);
  if (mode == "change_early") tensor.mutable_data_ptr<float>()[7] = 2;
  work.wait();
}

// A collective whose result is checked, so that a rank with wrong data fails.
void all_reduce(const accel::RankContext& context) {
  auto tensor = at::full({1000}, context.rank + 1.0);
  context.world.all_reduce(tensor).wait();
  const auto sum = tensor[0].item<double>();
  accel::ensure(sum == context.world_size * (context.world_size + 1) / 2.0, "all_reduce gave {}", sum);
}

// Each mode is a way in which real programs end.
void fault(const std::string& mode, const std::string& folder) {
  if (mode == "throw") throw std::runtime_error("the ink has run out");
  if (mode == "throw_config") throw accel::ConfigError("ink: expected black, got 'none'");
  if (mode == "die") raise(SIGKILL);
  if (mode == "hang") pause();
  if (mode == "exit") std::exit(3);
  if (mode == "exit_at_once") _exit(0);
  if (mode == "exit_at_once_3") std::_Exit(3);
  if (mode == "quick_exit") std::quick_exit(0);
  if (mode == "exit_group") syscall(SYS_exit_group, 0);
  if (mode == "null") *const_cast<volatile int*>(static_cast<int*>(nullptr)) = 1;
  if (mode == "overflow") std::cout << overflow_stack(1);
  if (mode == "abort") std::abort();
  if (mode == "stop") raise(SIGSTOP);
  if (mode == "fork") {
    if (const auto child = fork(); child == 0) _exit(0);
  }
  if (mode == "save") {
    std::ofstream state(std::filesystem::path(folder) / "state", std::ios::binary);
    state << std::string(1000, 'x');
    accel::check_config(state.flush().good(), "the state cannot be saved: {}", std::strerror(errno));
  }
  if (mode == "exit_in_thread") std::thread([] { std::exit(3); }).join();
}

// Like a program's own --help: the output is still in a buffer, and the program calls exit() itself.
void exit_as_help_does(const std::string& mode) {
  const std::array<int, 1000> on_the_stack{};
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
    if (context.rank == 1 && step == kFaultStep) fault(mode, argv[2]);
    // A rank that skips its call waits in the barrier below, which the other ranks do not reach.
    if (context.rank == 1 && step == kSteps - 1 && mode == "skip") continue;
    all_reduce(context);
  }
  if (mode.ends_with("_early")) touch_early(context, mode);
  context.world.barrier();
  static std::atomic<int> num_done{0};  // shared by all ranks of this process
  if (mode == "race")
    context.print("rank " + std::to_string(context.rank) + " is number " + std::to_string(num_done++) + "\n");
  context.print("rank " + std::to_string(context.rank) + " of " + std::to_string(context.world_size) + " has " +
                std::to_string(kSteps) + " sums\n");
  return mode == "code" && context.rank == 1 ? 3 : 0;
}

}  // namespace

int main(int argc, char** argv) { return accel::run(argc, argv, train); }
