#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "reference/sources/image.hpp"

/// The decoders that decode_image uses. They return uint8 tensors of shape (height, width, 3). Thread rule: any thread.
namespace accel::sources {

at::Tensor decode_jpeg(std::string_view bytes, std::string_view name, const ImageOptions& options);
at::Tensor decode_png(std::string_view bytes, std::string_view name);

struct ImageSize {
  std::int64_t width = 0, height = 0;
  std::int64_t channels = 3;
};

/// Allocates an image of shape (height, width, channels). Throws ConfigError for more pixels than PIL's limit, and if
/// the file has fewer bytes than the smallest encoding of the pixels needs.
at::Tensor empty_image(const ImageSize& size, std::int64_t num_bytes_min, std::string_view bytes,
                       std::string_view name);

}  // namespace accel::sources
