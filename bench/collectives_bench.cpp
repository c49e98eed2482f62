// Compares simulated collectives with real Gloo between threads of one process (over TCP), with PyTorch's
// MultiThreadedPG, and with plain copies of the same bytes. Also measures schedules per minute.
//
//   collectives_bench [--compare FILE.json] [--python "PYTHON bench/threaded_group.py"] [Google Benchmark's options]
//
// With --compare it measures only the ratios, each pair in the same run.
#include <benchmark/benchmark.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include <accel/accel.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>

#include "backends/launch/process.hpp"
#include "bench/median.hpp"
#include "bench/printed_json.hpp"
#include "bench/program.hpp"
#include "sim/backend/simulate.hpp"
#include "sim/engine/world.hpp"
#include "tests/support/run_ranks.hpp"

namespace {

using accel::bench::Json;
using accel::bench::median;

using accel::testing::Backend;

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Seconds of one all-reduce of `bytes` over `ranks`, measured on rank 0 between two barriers. The first call is not
// counted: Gloo connects and allocates in it.
double seconds_of_all_reduce(Backend backend, int ranks, std::int64_t bytes, int calls) {
  double seconds = 0;
  accel::testing::run_ranks(backend, ranks, [&](accel::RankContext& rank) {
    auto tensor = at::ones({bytes / 4});
    rank.world.all_reduce(tensor).wait();
    rank.world.barrier();
    const auto start = Clock::now();
    for (int call = 0; call < calls; ++call) rank.world.all_reduce(tensor).wait();
    rank.world.barrier();
    if (rank.rank == 0) seconds = seconds_since(start) / calls;
  });
  return seconds;
}

// Sets the time manually, since Google Benchmark's loop cannot run on every rank at once.
void all_reduce(benchmark::State& state, Backend backend) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  for (auto unused : state) {
    (void)unused;
    state.SetIterationTime(seconds_of_all_reduce(backend, ranks, bytes, bytes > (1 << 18) ? 10 : 50));
  }
  state.counters["payload_GB/s"] = benchmark::Counter(
      static_cast<double>(ranks * bytes), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

// The time that one core needs to copy every rank's buffer once: a lower bound for any collective on one core.
void copy(benchmark::State& state) {
  const int ranks = static_cast<int>(state.range(0));
  const std::int64_t bytes = state.range(1);
  std::vector<std::vector<char>> from(ranks, std::vector<char>(bytes, 1)), to(ranks, std::vector<char>(bytes));
  for (auto unused : state) {
    (void)unused;
    const auto start = std::chrono::steady_clock::now();
    for (int rank = 0; rank < ranks; ++rank) std::memcpy(to[rank].data(), from[rank].data(), bytes);
    benchmark::ClobberMemory();
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  state.counters["payload_GB/s"] = benchmark::Counter(
      static_cast<double>(ranks * bytes), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::kIs1000);
}

void sizes(benchmark::internal::Benchmark* bench) {
  for (const int ranks : {2, 8, 64}) {
    for (const int bytes : {4, 4 << 10, 1 << 20}) bench->Args({ranks, bytes});
  }
  bench->ArgNames({"ranks", "bytes"})->UseManualTime()->Iterations(3)->Unit(benchmark::kMillisecond);
}

BENCHMARK_CAPTURE(all_reduce, sim, Backend::kSim)->Apply(sizes);
BENCHMARK_CAPTURE(all_reduce, gloo_threads, Backend::kGlooTcpThreads)->Apply(sizes);
BENCHMARK(copy)->Apply(sizes);

// --- ratios ----------------------------------------------------------------------------------------------------------

constexpr int kRanks = 64;

// One core copies every rank's buffer into memory that is already mapped, so page faults do not count.
double seconds_of_copies(std::int64_t bytes) {
  std::vector<std::vector<char>> from(kRanks, std::vector<char>(bytes, 1)), to(kRanks, std::vector<char>(bytes, 2));
  std::vector<double> rounds;
  for (int round = 0; round < 9; ++round) {
    const auto start = Clock::now();
    for (int rank = 0; rank < kRanks; ++rank) std::memcpy(to[rank].data(), from[rank].data(), bytes);
    benchmark::ClobberMemory();
    rounds.push_back(seconds_since(start));
  }
  return median(rounds);
}

// The command prints the seconds of one call.
double ask_python(const std::string& python, std::int64_t bytes, int calls) {
  const auto command =
      python + " " + std::to_string(kRanks) + " " + std::to_string(bytes) + " " + std::to_string(calls);
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  double seconds = 0;
  if (!pipe || std::fscanf(pipe.get(), "%lf", &seconds) != 1) throw accel::Error("failed: " + command);
  return seconds;
}

// 4 KiB: the latency of a collective dominates. Gloo needs far more time per call, hence fewer calls.
Json compare_small(const std::string& python) {
  std::vector<double> sim, gloo, threaded;
  for (int round = 0; round < 3; ++round) {
    sim.push_back(seconds_of_all_reduce(Backend::kSim, kRanks, 4 << 10, 200));
    gloo.push_back(seconds_of_all_reduce(Backend::kGlooTcpThreads, kRanks, 4 << 10, 5));
    if (!python.empty()) threaded.push_back(ask_python(python, 4 << 10, 50));
  }
  Json result{{"ranks", kRanks},
              {"bytes", 4 << 10},
              {"sim_ms", 1e3 * median(sim)},
              {"gloo_threads_ms", 1e3 * median(gloo)},
              {"gloo_threads_over_sim", median(gloo) / median(sim)}};
  result["multi_threaded_pg_ms"] = python.empty() ? Json("not measured") : Json(1e3 * median(threaded));
  result["multi_threaded_pg_over_sim"] = python.empty() ? Json("not measured") : Json(median(threaded) / median(sim));
  return result;
}

// 1 MiB and more: the bytes dominate, so the comparison is with the rate of memcpy.
Json compare_large(std::int64_t bytes) {
  std::vector<double> sim, copies;
  for (int round = 0; round < 3; ++round) {
    sim.push_back(seconds_of_all_reduce(Backend::kSim, kRanks, bytes, 10));
    copies.push_back(seconds_of_copies(bytes));
  }
  return {{"ranks", kRanks},
          {"bytes", bytes},
          {"sim_ms", 1e3 * median(sim)},
          {"one_core_copies_ms", 1e3 * median(copies)},
          {"share_of_copy_rate", median(copies) / median(sim)}};
}

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

// Short runs consist mostly of starting and ending rank threads, which is what a loaded machine makes slow.
double seconds_of_short_runs(int runs) {
  const auto start = Clock::now();
  for (int run = 0; run < runs; ++run) accel::sim::simulate({.num_ranks = 4}, [](auto& rank) { rank.world.barrier(); });
  return seconds_since(start);
}

// Measures a typical user program, with as many intra-op threads as cores, while two other processes use the cores.
// Waiting ranks that spin instead of sleeping would show here.
Json compare_beside_busy_processes() {
  constexpr int kRuns = 200, kProcesses = 2;
  std::vector<double> quiet, busy;
  at::set_num_threads(kProcesses);
  for (int round = 0; round < 5; ++round) {
    quiet.push_back(seconds_of_short_runs(kRuns));
    const BusyProcesses processes(kProcesses);
    busy.push_back(seconds_of_short_runs(kRuns));
  }
  at::set_num_threads(1);
  return {{"ranks", 4},
          {"runs", kRuns},
          {"quiet_s", median(quiet)},
          {"beside_two_busy_processes_s", median(busy)},
          {"busy_over_quiet", median(busy) / median(quiet)}};
}

// Runs per minute of `run`, with 4 ranks and a different random schedule each time, one run after the other.
double runs_per_minute(double seconds, const std::function<void(const accel::sim::RankSchedule&)>& run) {
  std::int64_t runs = 0;
  const auto start = Clock::now();
  for (; seconds_since(start) < seconds; ++runs)
    run({.kind = accel::sim::ScheduleKind::kRandom, .seed = static_cast<std::uint64_t>(runs)});
  return 60 * static_cast<double>(runs) / seconds_since(start);
}

// The engine alone, without tensors: the rate at which a test can explore schedules of a communication protocol.
Json count_protocol_schedules() {
  namespace sim = accel::sim;
  const auto per_minute = runs_per_minute(/*seconds=*/3, [](const sim::RankSchedule& schedule) {
    sim::World world({.num_ranks = 4, .schedule = schedule});
    sim::run_ranks(world, [&](int rank) {
      const auto group = world.group("world", {0, 1, 2, 3});
      for (int call = 0; call < 10; ++call)
        world.wait(rank, *world.arrive(*group, rank, {.op = accel::sim::Collective::kAllReduce}, nullptr, [](auto) {}));
    });
  });
  return {{"ranks", 4}, {"collectives", 10}, {"schedules_per_minute", per_minute}};
}

// The same for a complete DDP step of a small model.
Json count_training_schedules() {
  namespace sim = accel::sim;
  const auto per_minute = runs_per_minute(/*seconds=*/5, [](const sim::RankSchedule& schedule) {
    sim::simulate({.num_ranks = 4, .schedule = schedule}, [](accel::RankContext& rank) {
      accel::Accelerator accelerator({}, rank);
      torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 4));
      torch::optim::SGD sgd(net->parameters(), 0.1);
      auto [model, optimizer] = accelerator.prepare(net, sgd);
      accelerator.backward(model(torch::ones({8, 16})).pow(2).mean());
      optimizer.step();
    });
  });
  return {{"ranks", 4}, {"ddp_steps", 1}, {"schedules_per_minute", per_minute}};
}

// Time from the moment at which the last of 64 ranks blocks, while one never calls the collective, to the diagnosis.
// Rank 7 returns instead, and the simulator must name it.
Json time_diagnosis() {
  namespace sim = accel::sim;
  std::vector<double> milliseconds;
  for (int round = 0; round < 20; ++round) {
    std::atomic<std::int64_t> last_call{0};
    const auto now = [] {
      return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now().time_since_epoch()).count();
    };
    const auto report = sim::rehearse({.num_ranks = kRanks}, [&](accel::RankContext& rank) {
      auto tensor = at::ones({64, 10});
      rank.world.all_reduce(tensor).wait();
      last_call = now();
      if (rank.rank != 7) rank.world.all_reduce(tensor).wait();
    });
    if (!report.diagnosis || report.diagnosis->ranks != std::vector<int>{7})
      throw accel::Error("the hang was not diagnosed; expected a report that names rank 7");
    milliseconds.push_back(1e-6 * static_cast<double>(now() - last_call));
  }
  return {{"ranks", kRanks},
          {"median_ms", median(milliseconds)},
          {"largest_ms", *std::max_element(milliseconds.begin(), milliseconds.end())}};
}

Json compare(const std::string& python) {
  return {{"small_all_reduce", compare_small(python)},        {"large_all_reduce", compare_large(1 << 20)},
          {"larger_all_reduce", compare_large(4 << 20)},      {"schedules", count_protocol_schedules()},
          {"training_schedules", count_training_schedules()}, {"hang_to_diagnosis", time_diagnosis()},
          {"short_runs", compare_beside_busy_processes()}};
}

// Passes the options on to Google Benchmark. Returns false if it does not recognize one.
bool read_benchmark_options(const std::vector<std::string>& options) {
  std::string name = "collectives_bench";
  std::vector<char*> arguments{name.data()};
  auto kept = options;
  for (auto& option : kept) arguments.push_back(option.data());
  int count = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  benchmark::Initialize(&count, arguments.data());
  return !benchmark::ReportUnrecognizedArguments(count, arguments.data());
}

}  // namespace

int main(int argc, char** argv) {
  // LibTorch's flight recorder is a singleton and does not support several Gloo ranks on threads of one process.
  setenv("TORCH_FR_BUFFER_SIZE", "0", 1);
  at::set_num_threads(1);
  accel::bench::Program program("collectives_bench",
                                "Measures simulated collectives. Without --compare it accepts the options of Google "
                                "Benchmark, such as --benchmark_filter=REGEX; with --compare it measures ratios to "
                                "real Gloo and to plain copies.",
                                "--compare");
  std::string python;
  program.add("--python", python,
              "With --compare: command that measures PyTorch's MultiThreadedPG and prints the result");
  std::vector<std::string> benchmark_options;
  if (const auto code = program.parse(argc, argv, &benchmark_options)) return *code;
  if (!read_benchmark_options(benchmark_options)) return 2;
  if (!program.out().empty()) return program.report([&] { return compare(python); });
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
