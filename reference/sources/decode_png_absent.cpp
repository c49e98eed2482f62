#include <ATen/core/Tensor.h>

#include "reference/core/absent_library.hpp"
#include "reference/sources/image_decoders.hpp"

namespace accel::sources {

at::Tensor decode_png(std::string_view /*bytes*/, std::string_view name) { throw_absent(name, "libpng", "ACCEL_PNG"); }

}  // namespace accel::sources
