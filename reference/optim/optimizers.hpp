#pragma once

/// Every optimizer of this library.
///
///     accel::optim::NAdam optimizer(net->parameters(), {.lr = 2e-3});
///
#include "reference/optim/adadelta.hpp"
#include "reference/optim/adamax.hpp"
#include "reference/optim/asgd.hpp"
#include "reference/optim/fused_adagrad.hpp"
#include "reference/optim/fused_adam.hpp"
#include "reference/optim/fused_sgd.hpp"
#include "reference/optim/nadam.hpp"
#include "reference/optim/radam.hpp"
#include "reference/optim/rmsprop.hpp"
#include "reference/optim/rprop.hpp"
