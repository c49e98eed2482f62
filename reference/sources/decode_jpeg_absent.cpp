#include <ATen/core/Tensor.h>

#include "reference/core/absent_library.hpp"
#include "reference/sources/image_decoders.hpp"

namespace accel::sources {

at::Tensor decode_jpeg(std::string_view /*bytes*/, std::string_view name, const ImageOptions& /*options*/) {
  throw_absent(name, "libjpeg", "ACCEL_JPEG");
}

}  // namespace accel::sources
