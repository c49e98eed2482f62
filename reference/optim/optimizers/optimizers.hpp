#pragma once

/// Every optimizer of this library.
///
///     accel::optim::NAdam optimizer(net->parameters(), {.lr = 2e-3});
///
#include "reference/optim/optimizers/adadelta.hpp"
#include "reference/optim/optimizers/adamax.hpp"
#include "reference/optim/optimizers/asgd.hpp"
#include "reference/optim/optimizers/fused_adagrad.hpp"
#include "reference/optim/optimizers/fused_adam.hpp"
#include "reference/optim/optimizers/fused_sgd.hpp"
#include "reference/optim/optimizers/nadam.hpp"
#include "reference/optim/optimizers/radam.hpp"
#include "reference/optim/optimizers/rmsprop.hpp"
#include "reference/optim/optimizers/rprop.hpp"
