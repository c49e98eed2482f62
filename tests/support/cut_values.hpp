#pragma once

#include <c10/core/GradMode.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "reference/modules/parameter_cut.hpp"

namespace accel::testing {

/// Gives each parameter this rank's part of `draw(name, sizes)`, a tensor with the sizes of the complete parameter, so
/// that a module has the same values in every layout.
template <typename Draw>
void fill_with_parts(const torch::nn::Module& module, Draw&& draw) {
  const c10::NoGradGuard no_grad;
  const auto cuts = parallel::parameter_cuts(module);
  for (const auto& item : module.named_parameters()) {
    const auto cut = cuts.find(item.key());
    if (cut == cuts.end())
      item.value().copy_(draw(item.key(), item.value().sizes().vec()));
    else
      item.value().copy_(cut->second.part_of(draw(item.key(), cut->second.whole_sizes(item.value()))));
  }
}

}  // namespace accel::testing
