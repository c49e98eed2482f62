#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "reference/core/errors.hpp"

/// The fields of a message between a rank's process and its proxy, as bytes: numbers, texts and lists of numbers, read
/// in the order in which they were written. Both ends are of one build, so the bytes carry no types.
///
/// Thread rule: one thread per message.
namespace accel::process {

class MessageWriter {
 public:
  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  MessageWriter& put(T number) {
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof number);
    return *this;
  }
  MessageWriter& put(std::string_view text) {
    put(static_cast<std::uint64_t>(text.size()));
    bytes_.append(text);
    return *this;
  }
  template <typename T>
  MessageWriter& put_list(const T& numbers) {
    put(static_cast<std::uint64_t>(numbers.size()));
    for (const auto number : numbers) put(static_cast<std::int64_t>(number));
    return *this;
  }
  [[nodiscard]] const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Appends the parts that have an operator << of their own to a message that is being made.
template <typename Part>
MessageWriter& operator<<(MessageWriter&& message, const Part& part) {
  return message << part;
}

/// Throws InternalError if the message is shorter than what is read.
class MessageReader {
 public:
  explicit MessageReader(std::string bytes) : bytes_(std::move(bytes)) {}

  template <typename T>
    requires std::is_arithmetic_v<T> || std::is_enum_v<T>
  T get() {
    T number;
    std::memcpy(&number, take(sizeof number), sizeof number);
    return number;
  }
  std::string text() {
    const auto size = get<std::uint64_t>();
    return {take(size), size};
  }
  template <typename T = std::int64_t>
  std::vector<T> list() {
    std::vector<T> numbers(get<std::uint64_t>());
    for (auto& number : numbers) number = static_cast<T>(get<std::int64_t>());
    return numbers;
  }

 private:
  const char* take(std::size_t size) {
    ensure(size <= bytes_.size() - position_, "a message between processes ends after {} bytes", bytes_.size());
    const auto* field = bytes_.data() + position_;
    position_ += size;
    return field;
  }

  std::string bytes_;
  std::size_t position_ = 0;
};

}  // namespace accel::process
