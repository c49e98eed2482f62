#include "bench/simulated_step.hpp"

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "bench/median.hpp"
#include "sim/backend/simulate.hpp"

namespace accel::bench {
namespace {

// Both sides must compute the same numbers, so models start with equal weights and hardly change them. LibTorch's max
// pooling is up to 25 % slower with other weights (mispredicted branches), which would count as a cost or a gain of the
// simulation.
constexpr double kLearningRate = 1e-9;

std::pair<at::Tensor, at::Tensor> batch_of(const Data& data, const Job& job, int number) {
  const auto row = number * job.batch % (4096 - job.batch);
  return {data.images.slice(0, row, row + job.batch), data.labels.slice(0, row, row + job.batch)};
}

// A fixed seed instead of a copied state: every model gets the same weights.
nn::Sequential make_equal(const Job& job) {
  const accel::GeneratorScope scope(accel::make_generator(7));
  return job.make();
}

accel::optim::Adam adam_of(nn::Sequential& net) {
  return {net->parameters(), torch::optim::AdamOptions(kLearningRate)};
}

// Several models stepped in turn on the calling thread, without communication. They read the batches of the ranks
// `first`, `first` + 1, ...
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
      const auto [images, labels] = batch_of(data, job_, step * kSimulatedRanks + first_ + static_cast<int>(index));
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

// Seconds of one step of 64 models, in turn on one thread. Divided by the number of cores this is the floor.
double models_in_turn(const Data& data, const Job& job, int steps) {
  Models models(job, kSimulatedRanks);
  models.step(data, 0);
  const auto start = Clock::now();
  for (int step = 1; step <= steps; ++step) models.step(data, step);
  return seconds_since(start) / steps;
}

// Seconds of one step of the same models divided over as many threads as cores, which never synchronize: the slowest
// thread. Shows what the machine loses by using all its cores, for example memory bandwidth.
double models_on_cores(const Data& data, const Job& job, int cores, int steps) {
  std::atomic<int> ready{0};
  std::vector<double> seconds(cores);
  std::vector<std::thread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      at::set_num_threads(1);
      Models models(job, kSimulatedRanks / cores, core * (kSimulatedRanks / cores));
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

// Seconds of one step of 64 ranks, each with its own model, that only meet in a barrier between backward and update.
// Shows the cost of many threads that take turns, without that of the all-reduce.
double ranks_with_barrier_only(const Data& data, const Job& job, int steps) {
  double seconds = 0;
  accel::sim::simulate({.num_ranks = kSimulatedRanks}, [&](accel::RankContext& rank) {
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

}  // namespace

double simulated_ranks(const Data& data, const Job& job, int num_ranks, int steps,
                       const std::function<void()>& at_end) {
  double seconds = 0;
  accel::sim::simulate({.num_ranks = num_ranks}, [&](accel::RankContext& rank) {
    accel::Accelerator accelerator({}, rank);
    auto net = make_equal(job);
    auto adam = adam_of(net);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    auto start = Clock::now();
    // Step 0 is the warm-up: DDP builds its buckets in it, and threads allocate their caches.
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

nlohmann::ordered_json measure_64_ranks(const Data& data, const Job& job, int rounds, int cores) {
  constexpr int kSteps = 20;
  std::vector<double> turns, on_cores, simulated, ratios, core_ratios, meeting_ratios;
  for (int round = 0; round < rounds; ++round) {
    turns.push_back(models_in_turn(data, job, kSteps));
    simulated.push_back(simulated_ranks(data, job, kSimulatedRanks, kSteps));
    meeting_ratios.push_back(ranks_with_barrier_only(data, job, kSteps) / (turns.back() / cores));
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

}  // namespace accel::bench
