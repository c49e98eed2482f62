#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "reference/sources/image.hpp"

/// The decoders that decode_image uses. They return uint8 tensors of shape (height, width, 3). Thread rule: any thread.
namespace accel::sources {

at::Tensor decode_jpeg(std::string_view bytes, std::string_view name, const ImageOptions& options);
at::Tensor decode_png(std::string_view bytes, std::string_view name);

/// Allocates an image of shape (height, width, channels). Throws ConfigError for more pixels than PIL's limit.
at::Tensor empty_image(std::int64_t width, std::int64_t height, std::int64_t channels, std::string_view name);

}  // namespace accel::sources
