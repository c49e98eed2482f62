#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

namespace accel::tracking {

/// Note [Protocol buffers by hand]
/// Event files need a dozen small messages. libtorch_cpu exports its own protobuf, of another version than Debian's,
/// and programs of this library export their symbols (Note [Interposition]), so a second protobuf in the process would
/// clash with the first. Therefore the wire format is written by hand. The caller adds fields in ascending order and
/// omits zeros, which gives the same bytes as protobuf. tests/reference/tracking parses them, and
/// properties/oracle/tracking.py reads them with TensorBoard.
///
///     Message().number(2, step).text(3, "brain.Event:2").bytes()
///
/// Thread rule: a value. Source: protobuf.dev/programming-guides/encoding.
class Message {
 public:
  Message& number(int field, std::int64_t value) {
    return varint(tag(field, 0)).varint(static_cast<std::uint64_t>(value));
  }
  Message& real(int field, double value) { return varint(tag(field, 1)).fixed(std::bit_cast<std::uint64_t>(value), 8); }
  Message& real32(int field, float value) {
    return varint(tag(field, 5)).fixed(std::bit_cast<std::uint32_t>(value), 4);
  }
  Message& text(int field, std::string_view value) {
    varint(tag(field, 2)).varint(value.size());
    bytes_ += value;
    return *this;
  }
  Message& message(int field, const Message& value) { return text(field, value.bytes_); }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  static std::uint64_t tag(int field, int kind) {
    return static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(kind);
  }
  Message& varint(std::uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
    return *this;
  }
  Message& fixed(std::uint64_t value, int num_bytes) {
    for (int byte = 0; byte < num_bytes; ++byte) bytes_ += static_cast<char>(value >> (8 * byte));
    return *this;
  }

  std::string bytes_;
};

}  // namespace accel::tracking
