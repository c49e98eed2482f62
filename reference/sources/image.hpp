#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

/// JPEG and PNG images as tensors: uint8, (3, height, width), red, green, blue.
///
///     const auto image = accel::decode_image(sample.at("jpg"), sample.at("__key__"));
///
/// The bytes are those of PIL's `Image.open(file).convert("RGB")`, which torchvision's folders give: grey, palette and
/// CMYK become RGB, an alpha channel is dropped and not blended, 16 bits become their upper 8 (of grey alone PIL clips
/// what is above 255 instead, which whitens it), gamma and EXIF's orientation are not applied. Decoders: libjpeg-turbo
/// and libpng. Thread rule: any thread.
namespace accel {

struct ImageOptions {
  /// false: what libjpeg calls a warning (stray bytes between markers, a bad code that it can step over) is an error;
  /// true: the image is taken as libjpeg mends it, as PIL does. An image that ends early is an error either way.
  bool allow_jpeg_warnings = false;
};

/// Throws ConfigError with the decoder's words, after `name` (a file, usually), for bytes that are neither JPEG nor
/// PNG, that are damaged or cut short (with the byte that the decoder had come to), or for more than 178,956,970
/// pixels, where PIL sees a bomb.
at::Tensor decode_image(std::string_view bytes, std::string_view name = "image", const ImageOptions& options = {});

/// Whether a file's name ends as those of images that can be read: .jpg, .jpeg or .png, in any case.
bool has_image_extension(std::string_view path);
/// Whether it ends as those of other images that torchvision reads.
bool has_unread_image_extension(std::string_view path);

}  // namespace accel
