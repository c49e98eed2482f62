#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

#include "reference/tracking/summary.hpp"

namespace accel::tracking {

/// Where the images of a batch go in one picture: row by row, eight in each.
struct GridPlan {
  std::int64_t rows = 0, columns = 0;
  [[nodiscard]] std::int64_t row(std::int64_t image) const { return image / columns; }
  [[nodiscard]] std::int64_t column(std::int64_t image) const { return image % columns; }
};
GridPlan plan_grid(std::int64_t num_images);

/// (count, 1 or 3, height, width), uint8 or floating in [0, 1], as one picture: uint8, (height, width, 3), on the CPU;
/// what has no image is black. Throws ArgumentError for another shape or dtype. Source:
/// torch/utils/tensorboard/summary.py, image, and _utils.py, make_grid.
at::Tensor image_grid(const at::Tensor& images);

/// A picture (height, width, 3), uint8, as a PNG.
EncodedImage encode_png(const at::Tensor& picture);

}  // namespace accel::tracking
