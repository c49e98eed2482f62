#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

#include "reference/core/value.hpp"
#include "reference/tracking/message.hpp"

namespace accel::tracking {

/// TensorBoard's Summary messages, as SummaryWriter makes them: what an event says under a tag.
///
/// Thread rule: any thread. Source: torch/utils/tensorboard/summary.py; the fields of
/// tensorboard/compat/proto/summary.proto.
Message scalar_summary(const std::string& tag, double value);
Message text_summary(const std::string& tag, const std::string& text);

struct EncodedImage {
  std::int64_t height = 0, width = 0, channels = 3;
  std::string png = {};
};
Message image_summary(const std::string& tag, const EncodedImage& image);

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

/// The experiment, the session's start, and its end. Nulls are left out; bools are numbers, as they are there.
std::array<Message, 3> hparams_summaries(const Value::Dict& hparams);

/// Throws ArgumentError that names all values that are no null, bool, number, string, or tensor of one element.
void check_hparams(const Value::Dict& hparams);

}  // namespace accel::tracking
