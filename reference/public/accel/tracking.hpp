#pragma once

/// Observing a run: trackers, logs by rank, progress bars, and the profiler.
#include "reference/profiler/profiler.hpp"
#include "reference/tracking/built_in_trackers.hpp"
#include "reference/tracking/logging.hpp"
#include "reference/tracking/progress.hpp"
#include "reference/tracking/trackers.hpp"
