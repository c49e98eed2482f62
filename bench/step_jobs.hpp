#pragma once

#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <accel/accel.hpp>
#include <accel/optim.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "bench/median.hpp"

/// The models that step_bench trains, random data for them, and the clock of a training loop.
namespace accel::bench {

namespace nn = torch::nn;

// LibTorch's Linear. In this program the forward of nn::Linear is replaced by one that supports float8
// (reference/precision/float8_layers.cpp), so the baseline needs this class.
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
  int batch = 8;
};

inline const Job kCnn{.name = "cnn", .make = make_cnn, .make_of_libtorch = make_cnn<LibTorchLinear>, .batch = 8};
inline const Job kLargeCnn{
    .name = "cnn_batch_32", .make = make_cnn, .make_of_libtorch = make_cnn<LibTorchLinear>, .batch = 32};
inline const Job kMlp{.name = "mlp", .make = make_mlp, .make_of_libtorch = make_mlp<LibTorchLinear>, .batch = 32};

struct Data {
  at::Tensor images = torch::rand({4096, 1, 28, 28});
  at::Tensor labels = torch::randint(0, 10, {4096}, at::kLong);
};

// All models must compute the same numbers, so they start with equal weights and hardly change them. LibTorch's max
// pooling is up to 25 % slower with other weights (mispredicted branches), which would count as a cost of what is
// measured.
constexpr double kLearningRate = 1e-9;

// A fixed seed instead of a copied state: every model gets the same weights.
inline nn::Sequential make_equal(nn::Sequential (*make)()) {
  const GeneratorScope scope(make_generator(7));
  return make();
}

inline optim::Adam adam_of(nn::Sequential& net) {
  return {net->parameters(), torch::optim::AdamOptions(kLearningRate)};
}

/// Takes the time of each step of a training loop. The first step is a warm-up: DDP builds its buckets in it, and
/// threads allocate their caches. Steps are timed one by one, because most of them end within a time slice: other
/// programs interrupt few of them, and the median shows the others.
///
///     StepTimer timer(/*steps=*/20);
///     do { ... } while (!timer.step_ends());
///     return timer.seconds();
class StepTimer {
 public:
  explicit StepTimer(int steps) : steps_(steps) {}

  /// Returns true at the end of the last step.
  bool step_ends() {
    const auto now = std::chrono::steady_clock::now();
    if (has_started_) seconds_.push_back(std::chrono::duration<double>(now - step_started_).count());
    has_started_ = true;
    step_started_ = now;
    return std::ssize(seconds_) == steps_;
  }
  /// The seconds of the median step.
  [[nodiscard]] double seconds() const { return median(seconds_); }

 private:
  int steps_;
  bool has_started_ = false;
  std::chrono::steady_clock::time_point step_started_{};
  std::vector<double> seconds_;
};

}  // namespace accel::bench
