#pragma once

#include <ATen/core/Tensor.h>

#include <string_view>

/// Decodes JPEG and PNG images to uint8 tensors of shape (3, height, width) in RGB order.
///
///     const auto image = accel::decode_image(sample.at("jpg"), sample.at("__key__"));
///
/// The result equals PIL's `Image.open(file).convert("RGB")`, which torchvision's folders use: gray, palette and CMYK
/// images become RGB, an alpha channel is dropped without blending, 16-bit values keep their upper 8 bits (for 16-bit
/// gray, PIL clips values above 255 instead, which produces white images), and gamma and EXIF orientation are ignored.
/// Decoders: libjpeg-turbo and libpng. Thread rule: any thread.
namespace accel {

struct ImageOptions {
  /// false: a warning of libjpeg (stray bytes between markers, an invalid code that it can skip) is an error. true: the
  /// image is accepted as libjpeg repairs it, as in PIL. A truncated image is always an error.
  bool allow_jpeg_warnings = false;
};

/// Decodes an image. Throws ConfigError, which starts with `name` (usually a file), for data that are neither JPEG nor
/// PNG, for damaged or truncated data (with the decoder's message and byte position), and for decompression bombs:
/// more than 178,956,970 pixels, which PIL rejects, more pixels than the data can hold, and JPEG images of more than
/// 100 scans.
at::Tensor decode_image(std::string_view bytes, std::string_view name = "image", const ImageOptions& options = {});

/// True if a file name has the extension of a supported image: .jpg, .jpeg or .png, in any case.
bool has_image_extension(std::string_view path);
/// True if it has the extension of another image format that torchvision reads.
bool has_unsupported_image_extension(std::string_view path);

}  // namespace accel
