// Measures the cost of the library relative to what it replaces. It reports ratios, measured side by side in one run.
//
//   step_bench [--out FILE.json] [--rounds N] [--python COMMAND] [--only SECTION ...]
//
// one rank   the same training loop on plain LibTorch and through the Accelerator, alternately
// python     with --python (bench/accelerate_training.py): experiments here and under Accelerate
// 64 ranks   one step of 64 simulated ranks (with its all-reduce), relative to the floor: 64 models stepped in turn on
//            one thread without communication, divided by the number of cores. The cnn at batch 8, the mlp at batch 32.
//            Also relative to the floor: the models divided over as many threads as cores (the loss of the machine
//            itself), and 64 ranks that only meet between backward and update (the cost of threads that take turns)
// sharded    a step of a transformer on 8 simulated ranks, fully sharded relative to DDP
// memory     resident set with 64 and with 128 ranks, in fresh processes; the difference per rank minus its own tensors
// start      time until all of 64 ranks run, in a fresh process
#include <unistd.h>

#include <accel/accel.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/beside_python.hpp"
#include "bench/median.hpp"
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
    simulated_ranks(data, kCnn, value, 3, [&] { bytes = resident_bytes(); });
    std::printf("%lld\n", static_cast<long long>(bytes));
  } else {
    std::atomic<int> running{0};
    double all_running = 0;
    const auto start = Clock::now();
    accel::sim::simulate({.num_ranks = value}, [&](accel::RankContext&) {
      if (++running == value) all_running = seconds_since(start);
    });
    std::printf("%.6f\n", all_running);
  }
}

Json measure_memory() {
  const double small = ask_child("rss 64"), large = ask_child("rss 128");
  // A rank's own tensors: parameters, gradients, DDP's bucket, and Adam's two moments. The difference of two runs
  // removes everything that does not grow with the number of ranks.
  const double own = 5.0 * static_cast<double>(bytes_of_parameters());
  const double per_rank = (large - small) / 64;
  return {{"rss_64_ranks_mb", small / 1e6},
          {"rss_128_ranks_mb", large / 1e6},
          {"per_rank_mb", per_rank / 1e6},
          {"own_tensors_mb", own / 1e6},
          {"beyond_tensors_mb", (per_rank - own) / 1e6}};
}

Json measure_start(int rounds) {
  std::vector<double> seconds;
  for (int round = 0; round < rounds; ++round) seconds.push_back(ask_child("start 64"));
  return {{"ranks", kSimulatedRanks}, {"seconds", median(seconds)}};
}

// --- sections -------------------------------------------------------------------------------------------------------

struct Run {
  int rounds = 9;
  std::string python = "";
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  Data data{};
};

Json beside_python(const Run& run, PythonJobs jobs) {
  return run.python.empty() ? Json("not measured") : measure_beside_python(run.python, std::min(run.rounds, 5), jobs);
}

const auto& sections() {
  static const std::vector<std::pair<std::string, Json (*)(const Run&)>> all = {
      {"one_rank_batch_8", [](const Run& run) { return measure_one_rank(run.data, kCnn, run.rounds); }},
      {"one_rank_batch_32", [](const Run& run) { return measure_one_rank(run.data, kLargeCnn, run.rounds); }},
      {"one_rank_mlp", [](const Run& run) { return measure_one_rank(run.data, kMlp, run.rounds); }},
      {"ranks_64", [](const Run& run) { return measure_64_ranks(run.data, kCnn, run.rounds, run.cores); }},
      {"ranks_64_mlp", [](const Run& run) { return measure_64_ranks(run.data, kMlp, run.rounds, run.cores); }},
      {"sharded", [](const Run& run) { return measure_sharded_step(std::min(run.rounds, 5)); }},
      {"memory", [](const Run&) { return measure_memory(); }},
      {"start", [](const Run&) { return measure_start(3); }},
      {"python_one_rank", [](const Run& run) { return beside_python(run, PythonJobs::kOneRank); }},
      {"python_gloo", [](const Run& run) { return beside_python(run, PythonJobs::kGloo); }},
      {"python_language", [](const Run& run) { return beside_python(run, PythonJobs::kLanguage); }}};
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 4 && argv[1] == std::string("--child")) {  // started by ask_child
    answer_child(argv[2], std::atoi(argv[3]));
    return 0;
  }
  Program program(
      "step_bench",
      "Measures training steps: one rank relative to plain LibTorch, 64 simulated ranks relative to the same "
      "models without communication.");
  Run run;
  std::vector<std::string> names, only;
  for (const auto& [name, measure] : sections()) names.push_back(name);
  program.add("--rounds", run.rounds, "Number of rounds per measurement; reports the median");
  program.add("--python", run.python, "Command that measures training under Accelerate and prints the rate as JSON");
  program.add("--only", only, names, "Measure only these sections; default: all");
  if (const auto code = program.parse(argc, argv)) return *code;
  return program.report([&] {
    Json result;
    for (const auto& [name, measure] : sections()) {
      if (only.empty() || std::ranges::find(only, name) != only.end()) result[name] = measure(run);
    }
    return result;
  });
}
