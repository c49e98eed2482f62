#pragma once

#include <string>
#include <vector>

#include "sim/programs/experiments/layout_forecast.hpp"

namespace accel::programs {

struct ForecastProgram {
  std::vector<std::string> command;
  int num_ranks = 1;
  std::string network;
};

/// The words of a shell that start a program under a layout: variables, then the command. Layouts with dp_shard shard
/// with FSDP 2, unless the environment or the program says otherwise.
std::vector<std::string> under_layout(const ParallelismConfig& layout, const std::vector<std::string>& command);

/// Starts the program under the layout, as rank 0 of many, for its costs: see rank_costs. What it prints is dropped;
/// its error is the forecast's problem.
LayoutForecast forecast_program(const ForecastProgram& program, const ParallelismConfig& layout);

}  // namespace accel::programs
