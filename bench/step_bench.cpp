// Measures the cost of the library relative to what it replaces, in rows that are interleaved in one run.
//
//   step_bench [--out FILE.json] [--rounds N] [--python COMMAND] [Google Benchmark's options]
//
// step            the same training loop on plain LibTorch and through the Accelerator
// simulated_step  one step of 8 or 64 simulated ranks (with its all-reduce). The floor: 64 models stepped in turn on
//                 one thread without communication, divided by the number of cores. Also relative to the floor: the
//                 models divided over as many threads as cores (the loss of the machine itself), and 64 ranks that
//                 only meet between backward and update (the cost of threads that take turns)
// sharded_step    a step of a transformer on 8 simulated ranks, fully sharded, elastic and under DDP
// memory          memory per simulated rank beyond its own tensors, in fresh processes
// start           time until all of 64 ranks run, in a fresh process
// experiment      with --python (bench/accelerate_training.py): experiments here and under Accelerate
#include <unistd.h>

#include <accel/accel.hpp>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <thread>

#include "bench/beside_python.hpp"
#include "bench/one_rank_step.hpp"
#include "bench/program.hpp"
#include "bench/sharded_step.hpp"
#include "bench/simulated_step.hpp"
#include "sim/backend/simulate.hpp"

namespace {

using namespace accel::bench;

std::int64_t bytes_of_parameters() {
  std::int64_t bytes = 0;
  for (const auto& parameter : make_cnn()->parameters()) bytes += static_cast<std::int64_t>(parameter.nbytes());
  return bytes;
}

std::int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  std::int64_t pages = 0, resident = 0;
  statm >> pages >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

// --- in fresh processes ---------------------------------------------------------------------------------------------

// Memory and start-up time depend on what a process did before, so each is measured in a new one.
double ask_child(const std::string& question) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((self + " --child " + question).c_str(), "r"), pclose);
  double answer = 0;
  if (!pipe || std::fscanf(pipe.get(), "%lf", &answer) != 1)
    throw accel::Error("a child process of step_bench failed: --child " + question);
  return answer;
}

void answer_child(const std::string& question, int value) {
  if (question == "rss") {
    const Data data;
    std::int64_t bytes = 0;
    simulated_ranks(data, kCnn, value, StepTimer(1), [&] { bytes = resident_bytes(); });
    std::printf("%lld\n", static_cast<long long>(bytes));
  } else {
    std::atomic<int> running{0};
    double all_running = 0;
    const auto start = std::chrono::steady_clock::now();
    accel::sim::simulate({.num_ranks = value}, [&](accel::RankContext&) {
      if (++running == value)
        all_running = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    });
    std::printf("%.6f\n", all_running);
  }
}

// A rank's own tensors are parameters, gradients, DDP's bucket, and Adam's two moments. The difference of two runs
// removes everything that does not grow with the number of ranks.
double bytes_per_rank() {
  const double own = 5.0 * static_cast<double>(bytes_of_parameters());
  return (ask_child("rss 64") - ask_child("rss 32")) / 32 - own;
}

Rows all_rows(const std::string& python) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  const auto data = std::make_shared<const Data>();
  Rows rows{{.name = "memory/per_rank", .measure = bytes_per_rank, .unit = "bytes", .compared = true},
            {.name = "start/64_ranks", .measure = [] { return ask_child("start 64"); }, .compared = true}};
  for (const auto& more : {one_rank_rows(data), simulated_rows(data, cores), sharded_rows(), python_rows(python)})
    rows.insert(rows.end(), more.begin(), more.end());
  return rows;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 4 && argv[1] == std::string("--child")) {  // started by ask_child
    answer_child(argv[2], std::atoi(argv[3]));
    return 0;
  }
  Program program("step_bench",
                  "Measures training steps: one rank relative to plain LibTorch, simulated ranks relative to the same "
                  "models without communication.");
  std::string python;
  program.add("--python", python, "Command that measures training under Accelerate and prints the rate as JSON");
  return program.run(argc, argv, [&] { return all_rows(python); });
}
