#include <ATen/core/Tensor.h>
#include <png.h>

#include "reference/core/errors.hpp"
#include "reference/tracking/summary.hpp"

namespace accel::tracking {

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

}  // namespace accel::tracking
