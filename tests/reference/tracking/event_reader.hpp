#pragma once

#include <bit>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

namespace accel::testing {

/// A protobuf message decoded from its wire format: the values of each field by the field's number. Varints and
/// fixed-size numbers are in `numbers`.
struct WireMessage {
  std::multimap<int, std::uint64_t> numbers;
  std::multimap<int, std::string> texts;

  explicit WireMessage(const std::string& bytes) {
    for (std::size_t place = 0; place < bytes.size();) {
      const auto tag = varint(bytes, place);
      const int field = static_cast<int>(tag >> 3);
      switch (tag & 7) {
        case 0: numbers.emplace(field, varint(bytes, place)); break;
        case 1: numbers.emplace(field, fixed(bytes, place, 8)); break;
        case 5: numbers.emplace(field, fixed(bytes, place, 4)); break;
        case 2: {
          const auto size = varint(bytes, place);
          if (place + size > bytes.size()) throw std::runtime_error("a field ends behind its message");
          texts.emplace(field, bytes.substr(place, size));
          place += size;
          break;
        }
        default: throw std::runtime_error("no wire type");
      }
    }
  }
  [[nodiscard]] std::string text(int field) const { return texts.contains(field) ? texts.find(field)->second : ""; }
  [[nodiscard]] WireMessage message(int field) const { return WireMessage(text(field)); }
  [[nodiscard]] std::uint64_t number(int field) const {
    return numbers.contains(field) ? numbers.find(field)->second : 0;
  }
  [[nodiscard]] float real32(int field) const {
    return std::bit_cast<float>(static_cast<std::uint32_t>(number(field)));
  }
  [[nodiscard]] double real(int field) const { return std::bit_cast<double>(number(field)); }
  [[nodiscard]] std::vector<WireMessage> messages(int field) const {
    std::vector<WireMessage> all;
    for (auto [item, end] = texts.equal_range(field); item != end; ++item) all.emplace_back(item->second);
    return all;
  }

 private:
  static std::uint64_t varint(const std::string& bytes, std::size_t& place) {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = static_cast<unsigned char>(bytes.at(place++));
      value |= static_cast<std::uint64_t>(byte & 0x7f) << shift;
      if ((byte & 0x80) == 0) return value;
    }
  }
  static std::uint64_t fixed(const std::string& bytes, std::size_t& place, int num_bytes) {
    std::uint64_t value = 0;
    for (int byte = 0; byte < num_bytes; ++byte)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes.at(place++))) << (8 * byte);
    return value;
  }
};

/// CRC-32C computed bit by bit and masked: a different way than the library's table.
inline std::uint32_t slow_masked_crc(const std::string& bytes) {
  std::uint32_t crc = 0xffffffffU;
  for (const char letter : bytes) {
    for (int bit = 0; bit < 8; ++bit) {
      const bool differs = ((crc ^ (static_cast<unsigned char>(letter) >> bit)) & 1U) != 0;
      crc = (crc >> 1) ^ (differs ? 0x82f63b78U : 0U);
    }
  }
  crc = ~crc;
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8U;
}

/// The records of a TFRecord file, up to one that is truncated; throws if a checksum is wrong.
inline std::vector<std::string> read_records(const std::string& bytes) {
  const auto number = [&](std::size_t place, int num_bytes) {
    std::uint64_t value = 0;
    for (int byte = 0; byte < num_bytes; ++byte)
      value |= static_cast<std::uint64_t>(static_cast<unsigned char>(bytes[place + byte])) << (8 * byte);
    return value;
  };
  std::vector<std::string> records;
  for (std::size_t place = 0; place + 12 <= bytes.size();) {
    const auto size = number(place, 8);
    if (number(place + 8, 4) != slow_masked_crc(bytes.substr(place, 8)))
      throw std::runtime_error("a length's checksum is wrong");
    if (place + 16 + size > bytes.size()) break;
    records.push_back(bytes.substr(place + 12, size));
    if (number(place + 12 + size, 4) != slow_masked_crc(records.back()))
      throw std::runtime_error("a record's checksum is wrong");
    place += 16 + size;
  }
  return records;
}

inline std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<WireMessage> read_events(const std::string& path) {
  std::vector<WireMessage> events;
  for (const auto& record : read_records(read_file(path))) events.emplace_back(record);
  return events;
}

}  // namespace accel::testing
