// JPEG decoder on libjpeg-turbo, with the same output as PIL.
#include <ATen/ops/empty.h>

#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <cstring>
#include <string>

#include <jpeglib.h>

#include "reference/core/errors.hpp"
#include "reference/sources/image_decoders.hpp"

namespace accel::sources {
namespace {

// libjpeg reports errors through a function that must not return; this one calls longjmp, which runs no destructors.
// Therefore every step is one call of `guarded`, and only plain data lives between setjmp and the calls of jpeg_*.
struct JpegReader {
  jpeg_decompress_struct info;
  jpeg_error_mgr errors;
  jpeg_source_mgr source;
  jpeg_progress_mgr progress;
  std::jmp_buf jump;
  bool allow_warnings = false, is_warning = false;
  char error[JMSG_LENGTH_MAX] = {};
};

JpegReader& reader_of(j_common_ptr info) { return *static_cast<JpegReader*>(info->client_data); }
JpegReader& reader_of(j_decompress_ptr info) { return *static_cast<JpegReader*>(info->client_data); }

[[noreturn]] void on_error(j_common_ptr info) {
  auto& reader = reader_of(info);
  info->err->format_message(info, reader.error);
  std::longjmp(reader.jump, 1);
}

// libjpeg calls this with level -1 for a warning about corrupt data, which it can conceal. By default a warning
// is an error, because concealed damage would silently change the training data.
void on_message(j_common_ptr info, int level) {
  auto& reader = reader_of(info);
  if (level >= 0 || reader.allow_warnings) return;
  reader.is_warning = true;
  on_error(info);
}

// The complete image is in memory from the start, so a request for more data means that the image is truncated.
boolean on_end(j_decompress_ptr info) {
  auto& reader = reader_of(info);
  std::strcpy(reader.error, "the image is truncated");
  std::longjmp(reader.jump, 1);
}

// libjpeg may ask to skip more than is left; its default source would continue with fake end markers.
void on_skip(j_decompress_ptr info, long num_bytes) {
  if (num_bytes <= 0) return;
  if (static_cast<std::size_t>(num_bytes) > info->src->bytes_in_buffer) on_end(info);
  info->src->next_input_byte += num_bytes;
  info->src->bytes_in_buffer -= static_cast<std::size_t>(num_bytes);
}

void do_nothing(j_decompress_ptr) {}

// Each scan of a progressive image visits all pixels, and may have a few bytes only. Encoders write about 10.
void on_progress(j_common_ptr info) {
  constexpr int kScansMax = 100;
  auto& reader = reader_of(info);
  if (reader.info.input_scan_number <= kScansMax) return;
  std::strcpy(reader.error, "it has more than 100 scans");
  std::longjmp(reader.jump, 1);
}

using JpegStep = void (*)(jpeg_decompress_struct& info, std::uint8_t* pixels);

// The frame that calls setjmp must still exist at the longjmp, so the jump buffer is set again for every step.
bool guarded(JpegReader& reader, JpegStep step, std::uint8_t* pixels = nullptr) {
  if (setjmp(reader.jump) != 0) return false;
  step(reader.info, pixels);
  return true;
}

// libjpeg cannot convert CMYK to RGB, so CMYK images are decoded to CMYK and converted below.
void start(jpeg_decompress_struct& info, std::uint8_t*) {
  jpeg_read_header(&info, TRUE);
  const bool is_cmyk = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = is_cmyk ? JCS_CMYK : JCS_RGB;
}

// Uses libjpeg's defaults, as PIL does: the slow integer DCT and interpolated chroma. Other settings change the bytes.
void read_pixels(jpeg_decompress_struct& info, std::uint8_t* pixels) {
  jpeg_start_decompress(&info);
  while (info.output_scanline < info.output_height) {
    auto* row = pixels + std::size_t{info.output_scanline} * info.output_width *
                             static_cast<std::size_t>(info.output_components);
    jpeg_read_scanlines(&info, &row, 1);
  }
  jpeg_finish_decompress(&info);
}

// Adobe programs store CMYK inverted, and PIL assumes that for all CMYK images. Source: libImaging/Convert.c, cmyk2rgb.
at::Tensor rgb_of_inverted_cmyk(const at::Tensor& cmyk) {
  auto rgb = at::empty({cmyk.size(0), cmyk.size(1), 3}, at::kByte);
  const auto* source = cmyk.const_data_ptr<std::uint8_t>();
  auto* target = rgb.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t pixel = 0; pixel < cmyk.size(0) * cmyk.size(1); ++pixel, source += 4) {
    for (int channel = 0; channel < 3; ++channel) {
      const int product = (255 - source[channel]) * source[3] + 128;  // source[3] is 255 - black
      *target++ = static_cast<std::uint8_t>(source[3] - (((product >> 8) + product) >> 8));
    }
  }
  return rgb;
}

class JpegDecoder {
 public:
  JpegDecoder(std::string_view bytes, std::string_view name, const ImageOptions& options) : name_(name), bytes_(bytes) {
    reader_.allow_warnings = options.allow_jpeg_warnings;
    reader_.info.err = jpeg_std_error(&reader_.errors);
    reader_.errors.error_exit = on_error;
    reader_.errors.emit_message = on_message;
    reader_.info.client_data = &reader_;
    check(guarded(reader_, [](jpeg_decompress_struct& info, std::uint8_t*) { jpeg_create_decompress(&info); }));
    reader_.source = {.next_input_byte = reinterpret_cast<const JOCTET*>(bytes.data()),
                      .bytes_in_buffer = bytes.size(),
                      .init_source = do_nothing,
                      .fill_input_buffer = on_end,
                      .skip_input_data = on_skip,
                      .resync_to_restart = jpeg_resync_to_restart,
                      .term_source = do_nothing};
    reader_.info.src = &reader_.source;
    reader_.progress.progress_monitor = on_progress;
    reader_.info.progress = &reader_.progress;
  }
  ~JpegDecoder() { jpeg_destroy_decompress(&reader_.info); }
  JpegDecoder(const JpegDecoder&) = delete;
  JpegDecoder& operator=(const JpegDecoder&) = delete;

  at::Tensor decode() {
    check(guarded(reader_, start));
    const auto& info = reader_.info;
    const bool is_cmyk = info.out_color_space == JCS_CMYK;
    // Each block of 8x8 pixels has at least one Huffman code, of at least one bit.
    const ImageSize size{.width = info.image_width, .height = info.image_height, .channels = is_cmyk ? 4 : 3};
    const auto num_bytes_min = info.arith_code != FALSE ? 0 : size.width * size.height / (64 * 8);
    auto image = empty_image(size, num_bytes_min, bytes_, name_);
    check(guarded(reader_, read_pixels, image.mutable_data_ptr<std::uint8_t>()));
    return is_cmyk ? rgb_of_inverted_cmyk(image) : image;
  }

 private:
  void check(bool succeeded) const {
    check_config(succeeded, "{}: the JPEG image is damaged: {} (byte {}){}", name_, reader_.error,
                 bytes_.size() - reader_.source.bytes_in_buffer,
                 reader_.is_warning
                     ? "; set ImageOptions::allow_jpeg_warnings to accept the image as libjpeg repairs it"
                     : "; replace or remove the image");
  }

  std::string name_;
  std::string_view bytes_;
  JpegReader reader_{};
};

}  // namespace

at::Tensor decode_jpeg(std::string_view bytes, std::string_view name, const ImageOptions& options) {
  return JpegDecoder(bytes, name, options).decode();
}

}  // namespace accel::sources
