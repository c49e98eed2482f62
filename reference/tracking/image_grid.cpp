#include "reference/tracking/image_grid.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>
#include <png.h>

#include <algorithm>

#include "reference/core/errors.hpp"

namespace accel::tracking {
namespace {

void check_images(const at::Tensor& images) {
  check_argument(
      images.defined() && images.dim() == 4 && images.numel() > 0 && (images.size(1) == 1 || images.size(1) == 3),
      "log_images: expected images of shape (count, 1 or 3, height, width), got {}",
      images.defined() ? fmt::format("({})", fmt::join(images.sizes().vec(), ", ")) : "no tensor");
  check_argument(images.scalar_type() == at::kByte || images.is_floating_point(),
                 "log_images: expected uint8, or floating in [0, 1], got {}", c10::toString(images.scalar_type()));
}

// NaN is black: numpy leaves what it becomes to the machine.
at::Tensor as_bytes(const at::Tensor& images) {
  if (images.scalar_type() == at::kByte) return images;
  return (images.to(at::kFloat) * 255).nan_to_num(0, 255, 0).clamp(0, 255).to(at::kByte);
}

}  // namespace

GridPlan plan_grid(std::int64_t num_images) {
  const auto columns = std::min<std::int64_t>(num_images, 8);
  return {.rows = (num_images + columns - 1) / columns, .columns = columns};
}

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

}  // namespace accel::tracking
