#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "reference/core/errors.hpp"

/// Reads numbers and bytes from a buffer that may be truncated. All reads are bounds-checked.
///
///     ByteCursor cursor(bytes, "model.bin: data.pkl");
///     const auto length = cursor.number<std::uint32_t>();
///
/// Thread rule: one thread at a time.
namespace accel::checkpoint {

/// Throws CheckpointError if the part is not inside `size` bytes.
inline void check_part(std::uint64_t size, std::uint64_t begin, std::uint64_t count, const std::string& what) {
  check_checkpoint(begin <= size, "{}: damaged: refers to byte {} of {}; copy or save the file again", what, begin,
                   size);
  check_checkpoint(count <= size - begin,
                   "{}: truncated: expected {} bytes at byte {}, got {}; copy or save the file again", what, count,
                   begin, size - begin);
}

class ByteCursor {
 public:
  /// Errors begin with `what`. The bytes must outlive the cursor.
  ByteCursor(std::string_view bytes, std::string what, std::uint64_t place = 0)
      : bytes_(bytes), what_(std::move(what)), place_(place) {
    check_part(bytes.size(), place, 0, what_);
  }

  [[nodiscard]] std::uint64_t place() const { return place_; }
  [[nodiscard]] const std::string& what() const { return what_; }

  /// Takes the next bytes. Throws CheckpointError if there are fewer, as do all functions below.
  std::string_view take(std::uint64_t count) {
    check_part(bytes_.size(), place_, count, what_);
    place_ += count;
    return bytes_.substr(place_ - count, count);
  }
  /// Takes the bytes up to a newline, and drops the newline.
  std::string_view line() {
    const auto end = bytes_.find('\n', place_);
    check_checkpoint(end != std::string_view::npos,
                     "{}: truncated: the line at byte {} does not end; copy or save the file again", what_, place_);
    const auto text = take(end - place_);
    take(1);
    return text;
  }
  /// Takes a little-endian number, which is the byte order of all supported machines.
  template <std::integral T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  void skip(std::uint64_t count) { take(count); }

 private:
  std::string_view bytes_;
  std::string what_;
  std::uint64_t place_;
};

}  // namespace accel::checkpoint
