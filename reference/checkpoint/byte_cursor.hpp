#pragma once

#include <concepts>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "reference/core/errors.hpp"

/// Numbers and bytes taken from the front of bytes that may be cut short.
///
///     ByteCursor cursor(bytes, "model.bin: data.pkl");
///     const auto length = cursor.number<std::uint32_t>();
///
/// Thread rule: a value.
namespace accel::checkpoint {

class ByteCursor {
 public:
  /// `what` is named by errors; the bytes must live as long as the cursor.
  ByteCursor(std::string_view bytes, std::string what, std::uint64_t place = 0)
      : bytes_(bytes), what_(std::move(what)), place_(place) {
    check_checkpoint(place <= bytes.size(), "{}: leads to byte {} of {}", what_, place, bytes.size());
  }

  [[nodiscard]] std::uint64_t place() const { return place_; }
  [[nodiscard]] const std::string& what() const { return what_; }

  /// Throws CheckpointError if there are less; so does everything below.
  std::string_view take(std::uint64_t count) {
    check_checkpoint(count <= bytes_.size() - place_, "{}: cut short: {} bytes expected at byte {}; there are {}",
                     what_, count, place_, bytes_.size() - place_);
    place_ += count;
    return bytes_.substr(place_ - count, count);
  }
  /// Up to a newline, which is taken too.
  std::string_view line() {
    const auto end = bytes_.find('\n', place_);
    check_checkpoint(end != std::string_view::npos, "{}: cut short: a line begins at byte {} and does not end", what_,
                     place_);
    const auto text = take(end - place_);
    take(1);
    return text;
  }
  /// Little-endian, as this machine's.
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
