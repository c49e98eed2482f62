#pragma once

#include <torch/nn/functional/linear.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include <accel/accel.hpp>
#include <chrono>
#include <string>

/// The models that step_bench trains, and random data for them.
namespace accel::bench {

using Clock = std::chrono::steady_clock;
namespace nn = torch::nn;

inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// LibTorch's Linear. In this program nn::Linear is replaced by ours (reference/precision/float8_layers.cpp), which
// creates fewer autograd nodes, so the baseline needs this class.
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
inline const Job kLargeCnn{.name = "cnn", .make = make_cnn, .make_of_libtorch = make_cnn<LibTorchLinear>, .batch = 32};
inline const Job kMlp{.name = "mlp", .make = make_mlp, .make_of_libtorch = make_mlp<LibTorchLinear>, .batch = 32};

struct Data {
  at::Tensor images = torch::rand({4096, 1, 28, 28});
  at::Tensor labels = torch::randint(0, 10, {4096}, at::kLong);
};

}  // namespace accel::bench
