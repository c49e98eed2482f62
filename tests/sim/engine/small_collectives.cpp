// The smallest collectives for tests of the engine, which must not depend on torch.
#include "tests/sim/engine/small_collectives.hpp"

#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

namespace accel::sim {

// 0, 1, ..., count - 1.
std::vector<int> first_ranks(int count) {
  std::vector<int> ranks(count);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

// An all-reduce of one integer, below any backend; returns the sum.
int all_sum(World& world, EngineGroup& group, int rank, int input, Call call) {
  auto value = std::make_shared<Summand>(Summand{input});
  auto meeting = world.arrive(group, rank, std::move(call), value, [](std::span<const Participant> all) {
    int sum = 0;
    for (const auto& one : all) sum += static_cast<Summand*>(one.get())->input;
    for (const auto& one : all) static_cast<Summand*>(one.get())->output = sum;
  });
  world.wait(rank, *meeting);
  return value->output;
}

// The error of a run that must fail.
RunError failure_of(World& world, const std::function<void(int)>& body) {
  try {
    run_ranks(world, body);
  } catch (const RunError& error) {
    return error;
  }
  throw std::runtime_error("the run was expected to fail");
}

// `runner` must not call the world, so that only the watchdog can find that it never arrives.
RunError failure_with_running_rank(World& world, int runner, const std::function<void(int)>& body) {
  std::atomic<bool> has_failed{false};
  return failure_of(world, [&](int rank) {
    if (rank == runner) {
      while (!has_failed) std::this_thread::yield();
      return;
    }
    try {
      body(rank);
    } catch (...) {
      has_failed = true;
      throw;
    }
  });
}

// Rank 1 waits for a message of rank 0.
void wait_for_message(World& world, EngineGroup& group) {
  world.wait(1,
             *world.receive(group, 0, 1, 0, {.op = Collective::kRecv}, nullptr, [](const auto&, const auto&, auto) {}));
}

}  // namespace accel::sim
