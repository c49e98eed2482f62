#pragma once

/// Metrics of predictions, over the samples of all ranks: `accel::metrics`.
#include "reference/accelerator/own_rows.hpp"
#include "reference/metrics/classification.hpp"
#include "reference/metrics/over_ranks.hpp"
#include "reference/metrics/ranking.hpp"
#include "reference/metrics/regression.hpp"
