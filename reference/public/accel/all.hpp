#pragma once

/// All headers of the library accel::accel except `<accel/models.hpp>`, `<accel/parallel.hpp>`,
/// `<accel/pipeline.hpp>` and `<accel/sync_batch_norm.hpp>`.
#include <accel/accel.hpp>
#include <accel/checkpoint.hpp>
#include <accel/elastic.hpp>
#include <accel/metrics.hpp>
#include <accel/offload.hpp>
#include <accel/optim.hpp>
#include <accel/sources.hpp>
#include <accel/tracking.hpp>

#include "reference/context_parallel/context_parallel_scope.hpp"
