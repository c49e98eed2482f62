// What the library costs beside what it replaces, measured side by side in one run: ratios, not absolute times.
//
//   step_bench [--out FILE.json] [--rounds N] [--python COMMAND] [--only SECTION ...]
//
// one rank   the same training loop over plain LibTorch and through Accelerator, in turn
// python     with --python (bench/accelerate_training.py): experiments beside the same under Accelerate
// 64 ranks   one step of 64 simulated ranks (with its all-reduce) beside 64 models stepped in turn on one thread,
// without
//            communication, divided by the cores: the floor. The cnn at batch 8, the mlp at batch 32. Beside it 32
//            models on each of two threads (as many as cores): what the machine itself makes of the division; and 64
//            ranks that each step a model of their own and only meet between backward and update: what threads that
//            take turns cost
// sharded    a transformer's step at 8 simulated ranks, fully sharded beside DDP
// memory     resident set with 64 and with 128 ranks, in fresh processes; the difference per rank, less its own tensors
// start      from nothing to the moment when all of 64 ranks run, in a fresh process
#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>
#include <unistd.h>

#include <accel/accel.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/beside_python.hpp"
#include "bench/median.hpp"
#include "bench/program.hpp"
#include "bench/sharded_step.hpp"
#include "sim/backend/simulate.hpp"

namespace {

using accel::bench::Json;
using accel::bench::median;

using Clock = std::chrono::steady_clock;
namespace nn = torch::nn;

constexpr int kRanks = 64;
constexpr int kBatch = 8;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// As LibTorch has it: in this program nn::Linear is ours (reference/precision/float8_layers.cpp), with fewer nodes of
// autograd.
struct LibTorchLinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  at::Tensor forward(const at::Tensor& input) { return nn::functional::linear(input, weight, bias); }
};
TORCH_MODULE(LibTorchLinear);

template <typename Linear = nn::Linear>
nn::Sequential make_cnn() {
  nn::Sequential net;
  net->push_back(nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1)));
  net->push_back(nn::ReLU());
  net->push_back(nn::MaxPool2d(2));
  net->push_back(nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1)));
  net->push_back(nn::ReLU());
  net->push_back(nn::MaxPool2d(2));
  net->push_back(nn::Flatten());
  net->push_back(Linear(1568, 10));
  return net;
}

template <typename Linear = nn::Linear>
nn::Sequential make_mlp() {
  nn::Sequential net;
  net->push_back(nn::Flatten());
  net->push_back(Linear(784, 128));
  net->push_back(nn::ReLU());
  net->push_back(Linear(128, 10));
  return net;
}

// A model and its batch.
struct Job {
  std::string name;
  nn::Sequential (*make)() = nullptr;
  nn::Sequential (*make_of_libtorch)() = nullptr;
  int batch = kBatch;
};

const Job kCnn{.name = "cnn", .make = make_cnn, .make_of_libtorch = make_cnn<LibTorchLinear>, .batch = 8};
const Job kLargeCnn{.name = "cnn", .make = make_cnn, .make_of_libtorch = make_cnn<LibTorchLinear>, .batch = 32};
const Job kMlp{.name = "mlp", .make = make_mlp, .make_of_libtorch = make_mlp<LibTorchLinear>, .batch = 32};

struct Data {
  at::Tensor images = torch::rand({4096, 1, 28, 28});
  at::Tensor labels = torch::randint(0, 10, {4096}, at::kLong);
};

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

// --- one rank -------------------------------------------------------------------------------------------------------

double plain_loop(const Data& data, const Job& job, int steps) {
  auto net = job.make_of_libtorch();
  accel::optim::Adam optimizer(net->parameters(), torch::optim::AdamOptions(1e-3));
  const auto order = torch::randperm(data.images.size(0), at::kLong);
  const auto start = Clock::now();
  for (int step = 0; step < steps; ++step) {
    const auto rows = order.slice(0, step * job.batch, (step + 1) * job.batch);
    const auto images = data.images.index_select(0, rows);
    const auto labels = data.labels.index_select(0, rows);
    auto loss = nn::functional::cross_entropy(net->forward(images), labels);
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  return seconds_since(start) / steps;
}

double accelerated_loop(const Data& data, const Job& job, int steps) {
  const auto context = accel::make_single_rank();
  const accel::RankScope scope(*context);
  accel::Accelerator accelerator;
  auto net = job.make();
  accel::optim::Adam adam(net->parameters(), torch::optim::AdamOptions(1e-3));
  accel::DataLoader loader(accel::TensorDataset(data.images, data.labels), {.batch_size = job.batch, .shuffle = true});
  auto [model, optimizer, batches] = accelerator.prepare(net, adam, loader);
  int step = 0;
  const auto start = Clock::now();
  for (auto& [images, labels] : batches) {
    auto window = accelerator.accumulate(model);
    auto loss = nn::functional::cross_entropy(model(images), labels);
    accelerator.backward(loss);
    optimizer.step();
    optimizer.zero_grad();
    if (++step == steps) break;
  }
  return seconds_since(start) / steps;
}

Json measure_one_rank(const Data& data, const Job& job, int rounds) {
  const int steps = 4096 / job.batch / 2;
  plain_loop(data, job, 8);
  accelerated_loop(data, job, 8);
  // Pairs next to each other in time, in changing order: the ratio of a pair is free of what the machine does
  // meanwhile.
  std::vector<double> plain, accelerated, ratios;
  for (int round = 0; round < rounds; ++round) {
    double a = 0, p = 0;
    if (round % 2 == 0) {
      p = plain_loop(data, job, steps);
      a = accelerated_loop(data, job, steps);
    } else {
      a = accelerated_loop(data, job, steps);
      p = plain_loop(data, job, steps);
    }
    plain.push_back(p);
    accelerated.push_back(a);
    ratios.push_back(a / p);
  }
  return {{"model", job.name},
          {"batch", job.batch},
          {"plain_ms", 1e3 * median(plain)},
          {"accelerator_ms", 1e3 * median(accelerated)},
          {"ratio", median(ratios)},
          {"ratio_of_minima",
           *std::min_element(accelerated.begin(), accelerated.end()) / *std::min_element(plain.begin(), plain.end())}};
}

// --- 64 ranks -------------------------------------------------------------------------------------------------------

// Both sides compute the same numbers: models begin with equal weights and as good as keep them. A max pooling of
// LibTorch takes up to a quarter longer with other weights (branches that are predicted worse), which would count as a
// cost of being simulated, or as a gain.
constexpr double kLearningRate = 1e-9;

std::pair<at::Tensor, at::Tensor> batch_of(const Data& data, const Job& job, int number) {
  const auto row = number * job.batch % (4096 - job.batch);
  return {data.images.slice(0, row, row + job.batch), data.labels.slice(0, row, row + job.batch)};
}

nn::Sequential make_equal(const Job& job) {
  const accel::GeneratorScope scope(accel::make_generator(7));
  return job.make();
}

accel::optim::Adam adam_of(nn::Sequential& net) {
  return {net->parameters(), torch::optim::AdamOptions(kLearningRate)};
}

// Some models stepped in turn on the calling thread, without communication, as the ranks from `first` on.
class Models {
 public:
  Models(const Job& job, int count, int first = 0) : job_(job), first_(first) {
    for (int index = 0; index < count; ++index) {
      nets_.push_back(make_equal(job));
      optimizers_.push_back(adam_of(nets_.back()));
    }
  }

  void step(
      const Data& data, int step, const std::function<void()>& before_update = [] {}) {
    for (std::size_t index = 0; index < nets_.size(); ++index) {
      const auto [images, labels] = batch_of(data, job_, step * kRanks + first_ + static_cast<int>(index));
      nn::functional::cross_entropy(nets_[index]->forward(images), labels).backward();
      before_update();
      optimizers_[index].step();
      optimizers_[index].zero_grad();
    }
  }

 private:
  Job job_;
  int first_;
  std::vector<nn::Sequential> nets_;
  std::vector<accel::optim::Adam> optimizers_;
};

// 64 models in turn on one thread: seconds of one step of all.
double models_in_turn(const Data& data, const Job& job, int steps) {
  Models models(job, kRanks);
  models.step(data, 0);
  const auto start = Clock::now();
  for (int step = 1; step <= steps; ++step) models.step(data, step);
  return seconds_since(start) / steps;
}

// The same models shared out over as many threads as cores, which never meet: seconds of one step of the slowest.
double models_on_cores(const Data& data, const Job& job, int cores, int steps) {
  std::atomic<int> ready{0};
  std::vector<double> seconds(cores);
  std::vector<std::thread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      at::set_num_threads(1);
      Models models(job, kRanks / cores, core * (kRanks / cores));
      models.step(data, 0);
      ++ready;
      while (ready < cores) std::this_thread::yield();
      const auto start = Clock::now();
      for (int step = 1; step <= steps; ++step) models.step(data, step);
      seconds[core] = seconds_since(start) / steps;
    });
  }
  for (auto& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// Seconds of one step of simulated ranks; `at_end` is called on rank 0 while all ranks still hold their tensors.
double simulated_ranks(const Data& data, const Job& job, int num_ranks, int steps,
                       const std::function<void()>& at_end = nullptr) {
  double seconds = 0;
  accel::sim::simulate({.num_ranks = num_ranks}, [&](accel::RankContext& rank) {
    accel::Accelerator accelerator({}, rank);
    auto net = make_equal(job);
    auto adam = adam_of(net);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    auto start = Clock::now();
    for (int step = 0; step <= steps; ++step) {
      if (step == 1) {
        accelerator.wait_for_everyone();
        start = Clock::now();
      }
      const auto [images, labels] = batch_of(data, job, step * num_ranks + rank.rank);
      accelerator.backward(nn::functional::cross_entropy(model(images), labels));
      optimizer.step();
      optimizer.zero_grad();
    }
    accelerator.wait_for_everyone();
    if (rank.rank == 0) {
      seconds = seconds_since(start) / steps;
      if (at_end) at_end();
    }
    accelerator.wait_for_everyone();
  });
  return seconds;
}

// 64 ranks, each with a model of its own, that meet between backward and update and exchange nothing: seconds of one
// step.
double ranks_that_only_meet(const Data& data, const Job& job, int steps) {
  double seconds = 0;
  accel::sim::simulate({.num_ranks = kRanks}, [&](accel::RankContext& rank) {
    Models models(job, 1, rank.rank);
    const auto meet = [&] { rank.world.barrier(); };
    models.step(data, 0, meet);
    meet();
    const auto start = Clock::now();
    for (int step = 1; step <= steps; ++step) models.step(data, step, meet);
    meet();
    if (rank.rank == 0) seconds = seconds_since(start) / steps;
  });
  return seconds;
}

Json measure_64_ranks(const Data& data, const Job& job, int rounds, int cores) {
  constexpr int kSteps = 20;
  std::vector<double> turns, on_cores, simulated, ratios, core_ratios, meeting_ratios;
  for (int round = 0; round < rounds; ++round) {
    turns.push_back(models_in_turn(data, job, kSteps));
    simulated.push_back(simulated_ranks(data, job, kRanks, kSteps));
    meeting_ratios.push_back(ranks_that_only_meet(data, job, kSteps) / (turns.back() / cores));
    on_cores.push_back(models_on_cores(data, job, cores, kSteps));
    ratios.push_back(simulated.back() / (turns.back() / cores));
    core_ratios.push_back(on_cores.back() / (turns.back() / cores));
  }
  return {{"model", job.name},
          {"batch", job.batch},
          {"cores", cores},
          {"floor_ms", 1e3 * median(turns) / cores},
          {"simulated_ms", 1e3 * median(simulated)},
          {"ratio", median(ratios)},
          {"without_communication_on_cores_ratio", median(core_ratios)},
          {"only_meeting_ratio", median(meeting_ratios)}};
}

// --- in fresh processes ---------------------------------------------------------------------------------------------

double ask_child(const std::string& question) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen((self + " --child " + question).c_str(), "r"), pclose);
  double answer = 0;
  if (!pipe || std::fscanf(pipe.get(), "%lf", &answer) != 1)
    throw accel::Error("a child process of step_bench failed: " + question);
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
  // Its own tensors: parameters, gradients, bucket, two moments.
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
  return {{"ranks", kRanks}, {"seconds", median(seconds)}};
}

// --- sections -------------------------------------------------------------------------------------------------------

struct Run {
  int rounds = 9;
  std::string python = "";
  int cores = static_cast<int>(std::thread::hardware_concurrency());
  Data data{};
};

Json beside_python(const Run& run, accel::bench::PythonJobs jobs) {
  return run.python.empty() ? Json("not measured")
                            : accel::bench::measure_beside_python(run.python, std::min(run.rounds, 5), jobs);
}

const auto& sections() {
  static const std::vector<std::pair<std::string, Json (*)(const Run&)>> all = {
      {"one_rank_batch_8", [](const Run& run) { return measure_one_rank(run.data, kCnn, run.rounds); }},
      {"one_rank_batch_32", [](const Run& run) { return measure_one_rank(run.data, kLargeCnn, run.rounds); }},
      {"one_rank_mlp", [](const Run& run) { return measure_one_rank(run.data, kMlp, run.rounds); }},
      {"ranks_64", [](const Run& run) { return measure_64_ranks(run.data, kCnn, run.rounds, run.cores); }},
      {"ranks_64_mlp", [](const Run& run) { return measure_64_ranks(run.data, kMlp, run.rounds, run.cores); }},
      {"sharded", [](const Run& run) { return accel::bench::measure_sharded_step(std::min(run.rounds, 5)); }},
      {"memory", [](const Run&) { return measure_memory(); }},
      {"start", [](const Run&) { return measure_start(3); }},
      {"python_one_rank", [](const Run& run) { return beside_python(run, accel::bench::PythonJobs::kOneRank); }},
      {"python_gloo", [](const Run& run) { return beside_python(run, accel::bench::PythonJobs::kGloo); }},
      {"python_language", [](const Run& run) { return beside_python(run, accel::bench::PythonJobs::kLanguage); }}};
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  at::set_num_threads(1);
  if (argc == 4 && argv[1] == std::string("--child")) {  // what this program asks of itself
    answer_child(argv[2], std::atoi(argv[3]));
    return 0;
  }
  accel::bench::Program program(
      "step_bench", "Measures training steps: one rank beside plain LibTorch, 64 simulated ranks beside their floor.");
  Run run;
  std::vector<std::string> names, only;
  for (const auto& [name, measure] : sections()) names.push_back(name);
  program.add("--rounds", run.rounds, "Of each measurement; the median counts");
  program.add("--python", run.python, "Command that measures Accelerate's training and prints its numbers");
  program.add("--only", only, names, "Measure these sections; without it, all");
  if (const auto code = program.parse(argc, argv)) return *code;
  return program.report([&] {
    Json result;
    for (const auto& [name, measure] : sections()) {
      if (only.empty() || std::ranges::find(only, name) != only.end()) result[name] = measure(run);
    }
    return result;
  });
}
