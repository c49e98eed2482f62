#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Where a list of layers is cut into stages. Pure. Thread rule: plain functions on values.
namespace accel::pipeline {

struct LayerSize {
  std::string name = {};
  std::int64_t size = 0;  ///< elements of its parameters
};

/// The layers with which stages begin: the first is 0, and each stage has at least one layer. The largest stage is as
/// small as it can be.
[[nodiscard]] std::vector<std::size_t> cut_by_size(const std::vector<LayerSize>& layers, int num_stages);

/// The same for given cuts: `names` are the layers with which the second stage and the ones after it begin. Adds what
/// is wrong with them to `problems`.
[[nodiscard]] std::vector<std::size_t> cut_at_names(const std::vector<LayerSize>& layers, int num_stages,
                                                    const std::vector<std::string>& names,
                                                    std::vector<std::string>& problems);

}  // namespace accel::pipeline
