#pragma once

// The parts of LibTorch that tests use. Including all of torch/torch.h would cost each source 2.5 s more, because
// every module of torch::nn is instantiated where it is included. A test that needs other modules includes them
// itself.
#include <torch/nn/functional.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
