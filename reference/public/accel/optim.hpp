#pragma once

/// The optimizers of accel::optim, which step all parameters together, their state dicts, and all schedules.
#include "reference/optim/optimizers/optimizer_state.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/schedules.hpp"
