#pragma once

#include <string>

#include "sim/predict/layout_search.hpp"

namespace accel::programs {

/// The layouts that a search has found, one per line; and as one JSON object. Both end with a new line.
[[nodiscard]] std::string found_layouts_text(const predict::TrainingRun& run, const predict::LayoutSearch& search);
[[nodiscard]] std::string found_layouts_json(const predict::TrainingRun& run, const predict::LayoutSearch& search);

}  // namespace accel::programs
