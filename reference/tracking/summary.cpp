// Field numbers are those of tensorboard/compat/proto: summary.proto, tensor.proto, types.proto and
// plugins/hparams.
#include "reference/tracking/summary.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <png.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/tracking/value_text.hpp"

namespace accel::tracking {
namespace {

// Integer types other than uint8 are ambiguous (0 to 1 or 0 to 255), so they are rejected.
void check_images(const at::Tensor& images) {
  check_argument(
      images.defined() && images.dim() == 4 && images.numel() > 0 && (images.size(1) == 1 || images.size(1) == 3),
      "log_images: expected images of shape (count, 1 or 3, height, width), got {}",
      images.defined() ? fmt::format("({})", fmt::join(images.sizes().vec(), ", ")) : "no tensor");
  check_argument(images.scalar_type() == at::kByte || images.is_floating_point(),
                 "log_images: expected uint8, or floating-point in [0, 1], got {}",
                 c10::toString(images.scalar_type()));
}

// Source: torch/utils/tensorboard/summary.py, image. NaN becomes black here; in NumPy the conversion is undefined.
at::Tensor as_bytes(const at::Tensor& images) {
  if (images.scalar_type() == at::kByte) return images;
  return (images.to(at::kFloat) * 255).nan_to_num(0, 255, 0).clamp(0, 255).to(at::kByte);
}

constexpr int kTypeString = 7;                        // types.proto, DT_STRING
constexpr int kHparamString = 1, kHparamFloat64 = 3;  // hparams/api.proto, DataType
constexpr int kStatusSuccess = 1;                     // hparams/api.proto, Status

Message summary_of(const Message& value) { return Message().message(1, value); }

// Tells TensorBoard which dashboard shows the value. An empty content must be omitted, as protobuf does.
Message plugin_metadata(std::string_view plugin, const Message& content) {
  Message data;
  data.text(1, plugin);
  if (!content.bytes().empty()) data.message(2, content);
  return Message().message(1, data);
}

Message hparams_summary(std::string_view tag, const Message& content) {
  return summary_of(Message().text(1, tag).message(9, plugin_metadata("hparams", content)));
}

}  // namespace

GridPlan plan_grid(std::int64_t num_images) {
  const auto columns = std::min<std::int64_t>(num_images, 8);
  return {.rows = (num_images + columns - 1) / columns, .columns = columns};
}

// Gray images are expanded to three channels first, as in torch/utils/tensorboard/_utils.py, make_grid.
at::Tensor image_grid(const at::Tensor& images) {
  check_images(images);
  const auto pixels = as_bytes(images.detach()).cpu().expand({-1, 3, -1, -1});
  const auto height = pixels.size(2), width = pixels.size(3);
  const auto plan = plan_grid(pixels.size(0));
  auto picture = at::zeros({plan.rows * height, plan.columns * width, 3}, at::kByte);
  for (std::int64_t image = 0; image < pixels.size(0); ++image) {
    picture.narrow(0, plan.row(image) * height, height)
        .narrow(1, plan.column(image) * width, width)
        .copy_(pixels[image].permute({1, 2, 0}));
  }
  return picture;
}

// The compressed size is unknown in advance, so the buffer starts with libpng's upper bound and is shrunk
// afterwards.
EncodedImage encode_png(const at::Tensor& picture) {
  const auto pixels = picture.contiguous();
  EncodedImage encoded{.height = pixels.size(0), .width = pixels.size(1)};
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(encoded.height);
  image.width = static_cast<png_uint_32>(encoded.width);
  image.format = PNG_FORMAT_RGB;
  encoded.png.resize(PNG_IMAGE_PNG_SIZE_MAX(image));
  png_alloc_size_t size = encoded.png.size();
  const bool is_written = png_image_write_to_memory(&image, encoded.png.data(), &size, /*convert_to_8bit=*/0,
                                                    pixels.const_data_ptr(), 0, nullptr) != 0;
  ensure(is_written, "libpng: {}", image.message);
  encoded.png.resize(size);
  return encoded;
}

Message scalar_summary(const std::string& tag, double value) {
  return summary_of(Message().text(1, tag).real32(2, static_cast<float>(value)));
}

// Source: torch/utils/tensorboard/summary.py, text: the suffix "/text_summary" and the plugin name "text" are
// what TensorBoard's text dashboard looks for.
Message text_summary(const std::string& tag, const std::string& text) {
  const auto shape = Message().message(2, Message().number(1, 1));
  const auto tensor = Message().number(1, kTypeString).message(2, shape).text(8, text);
  return summary_of(
      Message().text(1, tag + "/text_summary").message(8, tensor).message(9, plugin_metadata("text", Message())));
}

Message image_summary(const std::string& tag, const EncodedImage& image) {
  const auto content =
      Message().number(1, image.height).number(2, image.width).number(3, image.channels).text(4, image.png);
  return summary_of(Message().text(1, tag).message(4, content));
}

// Source: torch/utils/tensorboard/summary.py, hparams. A bool becomes a number, because the Python code tests for
// int first.
std::array<Message, 3> hparams_summaries(const Value::Dict& hparams) {
  Message experiment, start;
  for (const auto& [name, value] : hparams) {
    if (value.is_null()) continue;
    const bool is_text = value.is<std::string>();
    const auto content = is_text ? Message().text(3, value.as<std::string>()) : Message().real(2, *number_of(value));
    start.message(1, Message().text(1, name).message(2, content));
    experiment.message(4, Message().text(1, name).number(4, is_text ? kHparamString : kHparamFloat64));
  }
  const auto end = Message().number(1, kStatusSuccess);
  return {hparams_summary("_hparams_/experiment", Message().message(2, experiment)),
          hparams_summary("_hparams_/session_start_info", Message().message(3, start)),
          hparams_summary("_hparams_/session_end_info", Message().message(4, end))};
}

// All wrong values are listed at once. Source: torch/utils/tensorboard/summary.py, hparams, which raises
// ValueError for the first one.
void check_hparams(const Value::Dict& hparams) {
  std::vector<std::string> wrong;
  for (const auto& [name, value] : hparams) {
    if (!value.is_null() && !value.is<std::string>() && !number_of(value))
      wrong.push_back(fmt::format("'{}' is a {}", name, value.type_name()));
  }
  check_argument(
      wrong.empty(),
      "the run's configuration: {}; tensorboard accepts numbers, strings, bools and null; pass the entries of a "
      "list or dict as separate values",
      fmt::join(wrong, ", "));
}

}  // namespace accel::tracking
