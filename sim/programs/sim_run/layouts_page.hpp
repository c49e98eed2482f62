#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "sim/programs/experiments/layout_forecast.hpp"

namespace accel::programs {

/// The forecasts of a program under all layouts of some ranks.
struct LayoutRanking {
  std::vector<std::pair<std::string, std::string>> facts = {};    ///< name and value: program, ranks, network
  std::vector<LayoutForecast> layouts = {};                       ///< those that fit, the fastest first
  std::map<std::string, std::vector<std::string>> problems = {};  ///< layouts that do not fit, by reason

  [[nodiscard]] std::size_t num_unfit() const;
  /// Whether no other layout is at least as good in both time and memory.
  [[nodiscard]] bool is_best(std::size_t layout) const;
};

/// Sorts the forecasts by step time, then memory, then name.
LayoutRanking rank_layouts(std::vector<LayoutForecast> forecasts);

std::string layouts_text(const LayoutRanking& ranking);
std::string layouts_json(const LayoutRanking& ranking);
/// A self-contained HTML page.
std::string layouts_page(const LayoutRanking& ranking);

}  // namespace accel::programs
