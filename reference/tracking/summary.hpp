#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <string>

#include "reference/tree/value.hpp"

namespace accel::tracking {

/// TensorBoard's Summary messages, the content of an event, as SummaryWriter creates them, encoded as protobuf.
///
/// Note [Protocol buffers]
/// libtorch_cpu exports its own protobuf, of another version than Debian's, and programs of this library export their
/// symbols (Note [Interposition]), so a second protobuf in the process would clash with the first. Therefore messages
/// are written with protozero, which has headers only. The caller adds fields in ascending order and omits zeros, which
/// gives the same bytes as protobuf. tests/reference/tracking parses them, and properties/oracle/tracking.py reads them
/// with TensorBoard.
///
/// Thread rule: any thread. Source: torch/utils/tensorboard/summary.py; the fields of
/// tensorboard/compat/proto/summary.proto.
std::string scalar_summary(const std::string& tag, double value);
std::string text_summary(const std::string& tag, const std::string& text);

struct EncodedImage {
  std::int64_t height = 0, width = 0, channels = 3;
  std::string png = {};
};
std::string image_summary(const std::string& tag, const EncodedImage& image);

/// Layout of the images of a batch in one picture: row by row, eight per row.
struct GridPlan {
  std::int64_t rows = 0, columns = 0;
  [[nodiscard]] std::int64_t row(std::int64_t image) const { return image / columns; }
  [[nodiscard]] std::int64_t column(std::int64_t image) const { return image % columns; }
};
GridPlan plan_grid(std::int64_t num_images);

/// Combines images of shape (count, 1 or 3, height, width), uint8 or floating-point in [0, 1], to one picture: uint8,
/// (height, width, 3), on the CPU. Unused cells are black. Throws ArgumentError for another shape or dtype.
/// Source: torch/utils/tensorboard/summary.py, image, and _utils.py, make_grid.
at::Tensor image_grid(const at::Tensor& images);

/// Encodes a uint8 picture of shape (height, width, 3) as PNG.
EncodedImage encode_png(const at::Tensor& picture);

/// Returns the summaries of the experiment, the session start and the session end. Nulls are omitted; bools become
/// numbers.
std::array<std::string, 3> hparams_summaries(const Value::Dict& hparams);

/// Throws ArgumentError that lists all values that are not null, a bool, a number, a string or a tensor of shape [].
void check_hparams(const Value::Dict& hparams);

}  // namespace accel::tracking
