#pragma once

// What tests use of LibTorch. All of torch/torch.h would cost each source 2.5 s more: every module of torch::nn is
// instantiated where it is seen. A test of others includes them.
#include <torch/nn/functional.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim.h>
