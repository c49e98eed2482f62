#include <ATen/core/Tensor.h>
#include <png.h>

#include <csetjmp>
#include <cstring>
#include <string>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/sources/image_decoders.hpp"

namespace accel::sources {
namespace {

// libpng reports errors with longjmp, which runs no destructors. Therefore every step is one call of `guarded`, and
// only plain data lives between setjmp and the calls of png_*. The simplified API, png_image, needs no setjmp, but it
// applies gamma and blends alpha, which PIL does not.
struct PngReader {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const char* data = nullptr;
  std::size_t size = 0, place = 0;
  char error[256] = {};
};

void on_error(png_structp png, png_const_charp text) {
  auto* reader = static_cast<PngReader*>(png_get_error_ptr(png));
  std::strncpy(reader->error, text, sizeof reader->error - 1);
  png_longjmp(png, 1);
}

// Warnings concern ancillary chunks, which do not affect the pixels.
void on_warning(png_structp, png_const_charp) {}

// `place` is moved to the end on an error, so that the message names the position where data ran out.
void on_read(png_structp png, png_bytep target, png_size_t num_bytes) {
  auto* reader = static_cast<PngReader*>(png_get_io_ptr(png));
  if (num_bytes > reader->size - reader->place) {
    reader->place = reader->size;
    png_error(png, "the image is truncated");
  }
  std::memcpy(target, reader->data + reader->place, num_bytes);
  reader->place += num_bytes;
}

using PngStep = void (*)(PngReader&, png_bytep* rows);

bool guarded(PngReader& reader, PngStep step, png_bytep* rows = nullptr) {
  if (setjmp(png_jmpbuf(reader.png)) != 0) return false;
  step(reader, rows);
  return true;
}

void read_info(PngReader& reader, png_bytep*) {
  png_set_read_fn(reader.png, &reader, on_read);
  png_read_info(reader.png, reader.info);
}

// The same result as PIL's convert("RGB"): alpha is dropped without blending, and 16 bits are cut to the upper 8.
void convert_to_rgb(PngReader& reader, png_bytep*) {
  png_set_expand(reader.png);  // palettes, and gray with fewer than 8 bits
  png_set_strip_16(reader.png);
  png_set_strip_alpha(reader.png);
  png_set_gray_to_rgb(reader.png);
  png_set_interlace_handling(reader.png);
  png_read_update_info(reader.png, reader.info);
}

// png_read_end checks the CRC of the remaining chunks, so a file that is truncated after the pixels is an error.
void read_image(PngReader& reader, png_bytep* rows) {
  png_read_image(reader.png, rows);
  png_read_end(reader.png, nullptr);
}

class PngDecoder {
 public:
  PngDecoder(std::string_view bytes, std::string_view name) : name_(name) {
    reader_.data = bytes.data();
    reader_.size = bytes.size();
    reader_.png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &reader_, on_error, on_warning);
    ensure(reader_.png != nullptr, "libpng failed to start: {}", reader_.error);
    reader_.info = png_create_info_struct(reader_.png);
  }
  ~PngDecoder() { png_destroy_read_struct(&reader_.png, &reader_.info, nullptr); }
  PngDecoder(const PngDecoder&) = delete;
  PngDecoder& operator=(const PngDecoder&) = delete;

  at::Tensor decode() {
    check(guarded(reader_, read_info));
    const std::int64_t width = png_get_image_width(reader_.png, reader_.info),
                       height = png_get_image_height(reader_.png, reader_.info);
    // Deflate expands one byte to at most 1032 bytes.
    const auto data_bytes = static_cast<std::int64_t>(png_get_rowbytes(reader_.png, reader_.info)) * height;
    auto image =
        empty_image({.width = width, .height = height}, data_bytes / 1032, {reader_.data, reader_.size}, name_);
    check(guarded(reader_, convert_to_rgb));
    const auto row_bytes = static_cast<std::int64_t>(png_get_rowbytes(reader_.png, reader_.info));
    ensure(row_bytes == 3 * width, "{}: libpng reports rows of {} bytes for {} pixels", name_, row_bytes, width);
    std::vector<png_bytep> rows;
    for (std::int64_t row = 0; row < height; ++row)
      rows.push_back(image.mutable_data_ptr<std::uint8_t>() + row_bytes * row);
    check(guarded(reader_, read_image, rows.data()));
    return image;
  }

 private:
  void check(bool succeeded) const {
    check_config(succeeded, "{}: the PNG image is damaged: {} (byte {}); replace or remove the image", name_,
                 reader_.error, reader_.place);
  }

  std::string name_;
  PngReader reader_;
};

}  // namespace

at::Tensor decode_png(std::string_view bytes, std::string_view name) { return PngDecoder(bytes, name).decode(); }

}  // namespace accel::sources
