// Selects the decoder by the first bytes of the image, not by the file name, as PIL does.
#include "reference/sources/image.hpp"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <string>

#include "reference/core/errors.hpp"
#include "reference/core/letter_case.hpp"
#include "reference/sources/image_decoders.hpp"

namespace accel {

at::Tensor sources::empty_image(const ImageSize& size, std::int64_t num_bytes_min, std::string_view bytes,
                                std::string_view name) {
  constexpr std::int64_t kPixelsMax = 2 * (std::int64_t{1} << 30) / 4 / 3;  // PIL/Image.py, _decompression_bomb_check
  check_config(size.width * size.height <= kPixelsMax, "{}: the image has {}x{} pixels; expected at most {} pixels",
               name, size.width, size.height, kPixelsMax);
  check_config(num_bytes_min <= std::ssize(bytes),
               "{}: the image is truncated: its {} bytes cannot hold {}x{} pixels; replace or remove the image", name,
               bytes.size(), size.width, size.height);
  return at::empty({size.height, size.width, size.channels}, at::kByte);
}

// Decoders return rows of pixels (HWC), as files store them; models expect planes (CHW).
at::Tensor decode_image(std::string_view bytes, std::string_view name, const ImageOptions& options) {
  if (bytes.starts_with("\xff\xd8\xff"))
    return sources::decode_jpeg(bytes, name, options).permute({2, 0, 1}).contiguous();
  if (bytes.starts_with("\x89PNG\r\n\x1a\n")) return sources::decode_png(bytes, name).permute({2, 0, 1}).contiguous();
  throw ConfigError(
      fmt::format("{}: {}", name,
                  bytes.empty() ? "the image is empty; expected a JPEG or PNG image"
                                : "neither JPEG nor PNG, judging by its first bytes; expected one of these formats"));
}

namespace {

std::string ending_of(std::string_view path) {
  return lower_case(std::string(path.substr(std::min(path.rfind('.'), path.size()))));
}

}  // namespace

// Source: torchvision/datasets/folder.py, IMG_EXTENSIONS, without the formats that decode_image supports.
bool has_unsupported_image_extension(std::string_view path) {
  static constexpr std::array kOthers{".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"};
  return std::find(kOthers.begin(), kOthers.end(), ending_of(path)) != kOthers.end();
}

bool has_image_extension(std::string_view path) {
  const auto ending = ending_of(path);
  return ending == ".jpg" || ending == ".jpeg" || ending == ".png";
}

}  // namespace accel
