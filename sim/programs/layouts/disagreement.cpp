#include "sim/programs/layouts/disagreement.hpp"

#include <fmt/ranges.h>

namespace accel::programs {

std::string describe(const Disagreement& disagreement) {
  const auto& [step, kind, name, count] = disagreement.what;
  const auto what = describe(Observation{.step = step, .kind = kind, .name = name});
  auto text = fmt::format("step {}: {} on rank {} is wrong", step, what, disagreement.rank);
  if (disagreement.error > 0) text += fmt::format(" by {:.3g} of its largest element", disagreement.error);
  if (!disagreement.cause.empty()) text += "; " + disagreement.cause;
  if (!disagreement.collective.empty()) text += fmt::format("; responsible collective: {}", disagreement.collective);
  if (!disagreement.missing.empty()) text += fmt::format("; missing: {}", disagreement.missing);
  return text;
}

std::vector<ParallelismConfig> all_layouts(int num_ranks, LayoutAxes axes) {
  std::vector<ParallelismConfig> layouts{{}};
  // Appends every size that an axis may have to all meshes so far; the last axis gets the ranks that are left.
  const auto add_axis = [&](int ParallelismConfig::*size, bool is_last) {
    std::vector<ParallelismConfig> longer;
    for (const auto& layout : layouts) {
      const auto left = num_ranks / static_cast<int>(layout.total_size());
      for (int value = is_last ? left : 1; value <= left; ++value) {
        if (left % value != 0) continue;
        longer.push_back(layout);
        longer.back().*size = value;
      }
    }
    layouts = std::move(longer);
  };
  for (std::size_t axis = 0; axis < kNumMeshAxes; ++axis) {
    if ((axis == kPipelineAxis && !axes.pipelines) || (axis == kShardAxis && !axes.shards)) continue;
    add_axis(mesh_axes()[axis].size, /*is_last=*/axis + 1 == kNumMeshAxes);
  }
  std::erase_if(layouts, [](const auto& layout) { return layout.cp_enabled() && layout.sp_enabled(); });
  return layouts;
}

std::string name_of(const ParallelismConfig& layout) {
  std::vector<std::string> sizes;
  for (const auto& axis : mesh_axes()) {
    if (const auto size = layout.*axis.size; size > 1) sizes.push_back(fmt::format("{} {}", axis.name, size));
  }
  return sizes.empty() ? "one rank" : fmt::format("{}", fmt::join(sizes, " x "));
}

}  // namespace accel::programs
