#include "reference/pipeline/stage_cut.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

namespace accel::pipeline {
namespace {

// The first layers of stages of at most `limit` elements each, as few stages as possible.
std::vector<std::size_t> fill_stages(const std::vector<LayerSize>& layers, std::int64_t limit) {
  std::vector<std::size_t> begins{0};
  std::int64_t size = 0;
  for (std::size_t layer = 0; layer < layers.size(); ++layer) {
    if (layer > begins.back() && size + layers[layer].size > limit) {
      begins.push_back(layer);
      size = 0;
    }
    size += layers[layer].size;
  }
  return begins;
}

}  // namespace

std::vector<std::size_t> cut_by_size(const std::vector<LayerSize>& layers, int num_stages) {
  const auto wanted = static_cast<std::size_t>(num_stages);
  std::int64_t least = 0, enough = 0;
  for (const auto& layer : layers) {
    least = std::max(least, layer.size);
    enough += layer.size;
  }
  while (least < enough) {
    const auto middle = least + (enough - least) / 2;
    if (fill_stages(layers, middle).size() <= wanted)
      enough = middle;
    else
      least = middle + 1;
  }
  auto begins = fill_stages(layers, enough);
  // Layers without parameters may need fewer stages; the last stages with several layers give theirs away.
  while (begins.size() < wanted) {
    for (std::size_t stage = begins.size(); stage-- > 0;) {
      const auto end = stage + 1 < begins.size() ? begins[stage + 1] : layers.size();
      if (end - begins[stage] < 2) continue;
      begins.insert(begins.begin() + static_cast<std::ptrdiff_t>(stage) + 1, end - 1);
      break;
    }
  }
  return begins;
}

std::vector<std::size_t> cut_at_names(const std::vector<LayerSize>& layers, int num_stages,
                                      const std::vector<std::string>& names, std::vector<std::string>& problems) {
  std::vector<std::size_t> begins{0};
  std::vector<std::string> unknown;
  for (const auto& name : names) {
    const auto layer = std::ranges::find(layers, name, &LayerSize::name);
    if (layer == layers.end())
      unknown.push_back(name);
    else
      begins.push_back(static_cast<std::size_t>(layer - layers.begin()));
  }
  if (!unknown.empty()) {
    std::vector<std::string> known;
    for (const auto& layer : layers) known.push_back(layer.name);
    problems.push_back(fmt::format("split_points: the model has no layer '{}'; expected some of: {}",
                                   fmt::join(unknown, "', '"), fmt::join(known, ", ")));
  } else if (std::ranges::adjacent_find(begins, std::greater_equal()) != begins.end()) {
    problems.push_back(
        fmt::format("split_points: '{}' are not in the order of the layers, each once, without the first",
                    fmt::join(names, "', '")));
  }
  if (static_cast<int>(names.size()) + 1 != num_stages)
    problems.push_back(
        fmt::format("split_points: {} names for {} stages; expected {}", names.size(), num_stages, num_stages - 1));
  return begins;
}

}  // namespace accel::pipeline
