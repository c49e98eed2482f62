// Measures simulated collectives beside real Gloo between threads of one process (over TCP), PyTorch's MultiThreadedPG,
// and plain copies of the same bytes; also schedules, the diagnosis of a hang, and short runs.
//
//   collectives_bench [--out FILE.json] [--rounds N] [--python "PYTHON bench/threaded_group.py"] [Google Benchmark's
//   options]
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <accel/accel.hpp>
#include <atomic>
#include <chrono>
#include <cstdlib>

#include "backends/launch/process.hpp"
#include "bench/collective_rows.hpp"
#include "bench/program.hpp"
#include "sim/backend/simulate.hpp"
#include "sim/engine/world.hpp"

namespace {

using namespace accel::bench;

using Clock = std::chrono::steady_clock;

constexpr int kRanks = 64;

// Starts processes that each keep one core busy until the end of the scope.
class BusyProcesses {
 public:
  explicit BusyProcesses(int count) {
    for (int process = 0; process < count; ++process)
      processes_.push_back(accel::launcher::start_process({.command = {"/bin/sh", "-c", "while :; do :; done"}}));
  }
  ~BusyProcesses() {
    for (const auto process : processes_) {
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
    }
  }

 private:
  std::vector<pid_t> processes_;
};

// Short runs consist mostly of starting and ending rank threads, which is what a loaded machine makes slow. Seconds of
// one run of 4 ranks in a typical user program, with as many intra-op threads as cores.
double seconds_of_short_run() {
  at::set_num_threads(2);
  const auto seconds =
      median_seconds(10, 20, [] { accel::sim::simulate({.num_ranks = 4}, [](auto& rank) { rank.world.barrier(); }); });
  at::set_num_threads(1);
  return seconds;
}

// The same while two other processes use the cores. Waiting ranks that spin instead of sleeping would show here.
double seconds_of_short_run_beside_busy_processes() {
  const BusyProcesses processes(2);
  return seconds_of_short_run();
}

// Seconds of one run with 4 ranks and a different random schedule each time, one run after the other.
double seconds_per_schedule(int runs, const std::function<void(const accel::sim::RankSchedule&)>& run) {
  std::uint64_t seed = 0;
  return median_seconds(10, runs / 10, [&] { run({.kind = accel::sim::ScheduleKind::kRandom, .seed = seed++}); });
}

// The engine alone, without tensors: the rate at which a test can explore schedules of a communication protocol.
double seconds_per_protocol_schedule() {
  namespace sim = accel::sim;
  return seconds_per_schedule(/*runs=*/200, [](const sim::RankSchedule& schedule) {
    sim::World world({.num_ranks = 4, .schedule = schedule});
    sim::run_ranks(world, [&](int rank) {
      const auto group = world.group("world", {0, 1, 2, 3});
      for (int call = 0; call < 10; ++call)
        world.wait(rank, *world.arrive(*group, rank, {.op = accel::Collective::kAllReduce}, nullptr, [](auto) {}));
    });
  });
}

// The same for a complete DDP step of a small model.
double seconds_per_training_schedule() {
  namespace sim = accel::sim;
  return seconds_per_schedule(/*runs=*/100, [](const sim::RankSchedule& schedule) {
    sim::simulate({.num_ranks = 4, .schedule = schedule}, [](accel::RankContext& rank) {
      accel::Accelerator accelerator({}, rank);
      torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(torch::ones({8, 16})).pow(2).mean());
      optimizer.step();
    });
  });
}

// Seconds from the moment at which the last of 64 ranks blocks, while one never calls the collective, to the diagnosis.
// Rank 7 returns instead, and the simulator must name it.
double seconds_to_diagnosis() {
  namespace sim = accel::sim;
  std::atomic<Clock::rep> last_call{0};
  const auto report = sim::rehearse({.num_ranks = kRanks}, [&](accel::RankContext& rank) {
    auto tensor = at::ones({64, 10});
    rank.world.all_reduce(tensor).wait();
    last_call = Clock::now().time_since_epoch().count();
    if (rank.rank != 7) rank.world.all_reduce(tensor).wait();
  });
  const auto seconds = std::chrono::duration<double>(Clock::now().time_since_epoch() - Clock::duration(last_call));
  if (!report.diagnosis || report.diagnosis->ranks != std::vector<int>{7})
    throw accel::Error("the hang was not diagnosed; expected a report that names rank 7");
  return seconds.count();
}

Rows all_rows(const std::string& python) {
  auto rows = collective_rows(python);
  rows.push_back({.name = "schedule/10_collectives", .measure = seconds_per_protocol_schedule, .compared = true});
  rows.push_back({.name = "schedule/training_step", .measure = seconds_per_training_schedule});
  rows.push_back({.name = "hang_to_diagnosis/64_ranks", .measure = seconds_to_diagnosis});
  rows.push_back({.name = "short_run/4_ranks", .measure = seconds_of_short_run});
  rows.push_back({.name = "short_run/4_ranks_beside_busy_processes",
                  .measure = seconds_of_short_run_beside_busy_processes,
                  .beside = "short_run/4_ranks"});
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  // LibTorch's flight recorder is a singleton and does not support several Gloo ranks on threads of one process.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  at::set_num_threads(1);
  Program program("collectives_bench", "Measures simulated collectives beside real Gloo and plain copies.");
  std::string python;
  program.add("--python", python, "Command that measures PyTorch's MultiThreadedPG and prints the result");
  return program.run(argc, argv, [&] { return all_rows(python); });
}
