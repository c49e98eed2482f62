#include "bench/simulated_step.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <thread>
#include <utility>

#include "sim/backend/simulate.hpp"

namespace accel::bench {
namespace {

constexpr int kSimulatedRanks = 64;

std::pair<at::Tensor, at::Tensor> batch_of(const Data& data, const Job& job, int number) {
  const auto row = number * job.batch % (4096 - job.batch);
  return {data.images.slice(0, row, row + job.batch), data.labels.slice(0, row, row + job.batch)};
}

// Several models stepped in turn on the calling thread, without communication. They read the batches of the ranks
// `first`, `first` + 1, ...
class Models {
 public:
  Models(const Job& job, int count, int first = 0) : job_(job), first_(first) {
    for (int index = 0; index < count; ++index) {
      nets_.push_back(make_equal(job.make));
      optimizers_.push_back(adam_of(nets_.back()));
    }
  }

  void step(
      const Data& data, const std::function<void()>& before_update = [] {}) {
    for (std::size_t index = 0; index < nets_.size(); ++index) {
      const auto [images, labels] = batch_of(data, job_, step_ * kSimulatedRanks + first_ + static_cast<int>(index));
      nn::functional::cross_entropy(nets_[index]->forward(images), labels).backward();
      before_update();
      optimizers_[index].step();
      optimizers_[index].zero_grad();
    }
    ++step_;
  }

 private:
  Job job_;
  int first_, step_ = 0;
  std::vector<nn::Sequential> nets_;
  std::vector<accel::optim::Adam> optimizers_;
};

// Seconds of one step of 64 models, in turn on one thread. Divided by the number of cores this is the floor.
double models_in_turn(const Data& data, const Job& job, StepTimer timer) {
  Models models(job, kSimulatedRanks);
  do models.step(data);
  while (!timer.step_ends());
  return timer.seconds();
}

// Seconds of one step of the same models divided over as many threads as cores, which never synchronize: the slowest
// thread. Shows what the machine loses by using all its cores, for example memory bandwidth.
double models_on_cores(const Data& data, const Job& job, int cores, const StepTimer& shared) {
  std::atomic<int> ready{0};
  std::vector<double> seconds(cores);
  std::vector<std::thread> threads;
  for (int core = 0; core < cores; ++core) {
    threads.emplace_back([&, core] {
      auto timer = shared;
      at::set_num_threads(1);
      Models models(job, kSimulatedRanks / cores, core * (kSimulatedRanks / cores));
      ++ready;
      while (ready < cores) std::this_thread::yield();
      do models.step(data);
      while (!timer.step_ends());
      seconds[core] = timer.seconds();
    });
  }
  for (auto& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

// Seconds of one step of 64 ranks, each with its own model, that only meet in a barrier between backward and update.
// Shows the cost of many threads that take turns, without that of the all-reduce.
double ranks_with_barrier_only(const Data& data, const Job& job, const StepTimer& shared) {
  double seconds = 0;
  sim::simulate({.num_ranks = kSimulatedRanks}, [&](RankContext& rank) {
    auto timer = shared;
    Models models(job, 1, rank.rank);
    do models.step(data, [&] { rank.world.barrier(); });
    while (!timer.step_ends());
    if (rank.rank == 0) seconds = timer.seconds();
  });
  return seconds;
}

}  // namespace

double simulated_ranks(const Data& data, const Job& job, int num_ranks, StepTimer shared,
                       const std::function<void()>& at_end) {
  double seconds = 0;
  sim::simulate({.num_ranks = num_ranks}, [&](RankContext& rank) {
    auto timer = shared;
    Accelerator accelerator({}, rank);
    auto net = make_equal(job.make);
    auto adam = adam_of(net);
    auto [model, optimizer] = accelerator.prepare(net, adam);
    int step = 0;
    do {
      const auto [images, labels] = batch_of(data, job, step++ * num_ranks + rank.rank);
      accelerator.backward(nn::functional::cross_entropy(model(images), labels));
      optimizer.step();
      optimizer.zero_grad();
    } while (!timer.step_ends());
    accelerator.wait_for_everyone();
    if (rank.rank == 0) {
      seconds = timer.seconds();
      if (at_end) at_end();
    }
    accelerator.wait_for_everyone();
  });
  return seconds;
}

Rows simulated_rows(const std::shared_ptr<const Data>& data, int cores) {
  Rows rows;
  const auto add = [&](const Job& job, StepTimer timer_of_8, StepTimer timer) {
    const auto name = "simulated_step/" + job.name, floor = name + "/64_models_in_turn_per_core";
    rows.push_back({.name = name + "/8_ranks",
                    .measure = [=, &job] { return simulated_ranks(*data, job, 8, timer_of_8); },
                    .compared = true});
    rows.push_back({.name = name + "/64_ranks",
                    .measure = [=, &job] { return simulated_ranks(*data, job, kSimulatedRanks, timer); },
                    .beside = floor,
                    .compared = true});
    rows.push_back({.name = name + "/64_ranks_that_only_meet",
                    .measure = [=, &job] { return ranks_with_barrier_only(*data, job, timer); },
                    .beside = floor});
    rows.push_back({.name = name + "/64_models_on_all_cores",
                    .measure = [=, &job] { return models_on_cores(*data, job, cores, timer); },
                    .beside = floor});
    rows.push_back({.name = floor, .measure = [=, &job] { return models_in_turn(*data, job, timer) / cores; }});
  };
  add(kMlp, StepTimer(40), StepTimer(8));
  add(kCnn, StepTimer(20), StepTimer(4));
  return rows;
}

}  // namespace accel::bench
