#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

#include "reference/sources/image.hpp"

/// The two decoders behind decode_image: (height, width, 3) uint8. Thread rule: any thread.
namespace accel::sources {

at::Tensor decode_jpeg(std::string_view bytes, std::string_view name, const ImageOptions& options);
at::Tensor decode_png(std::string_view bytes, std::string_view name);

/// Room for (height, width, channels). Throws ConfigError for more pixels than PIL takes for a decompression bomb.
at::Tensor empty_image(std::int64_t width, std::int64_t height, std::int64_t channels, std::string_view name);

}  // namespace accel::sources
