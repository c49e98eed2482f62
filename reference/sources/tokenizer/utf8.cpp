#include "reference/sources/tokenizer/utf8.hpp"

namespace accel::sources {

// Source: The Unicode Standard, table 3-7. A first byte restricts the second one, so that overlong forms, surrogates
// and code points above U+10FFFF are invalid at their second byte.
int utf8_step(std::string_view text) {
  const auto byte = [&](std::size_t place) -> unsigned {
    return place < text.size() ? static_cast<unsigned char>(text[place]) : 0;
  };
  const auto first = byte(0), second = byte(1);
  if (first < 0x80) return 1;
  const int length = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf5 ? 4 : 0;
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (length == 0 || second < low || second > high) return -1;
  for (int place = 2; place < length; ++place) {
    if ((byte(static_cast<std::size_t>(place)) & 0xc0) != 0x80) return -place;
  }
  return length;
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) {
  for (std::size_t place = 0; place < text.size();) {
    const auto step = utf8_step(text.substr(place));
    if (step < 0) return place;
    place += static_cast<std::size_t>(step);
  }
  return std::nullopt;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const auto step = utf8_step(text);
    const auto length = static_cast<std::size_t>(step < 0 ? -step : step);
    result += step < 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);
    text.remove_prefix(length);
  }
  return result;
}

char32_t first_code_point(std::string_view text) {
  const auto first = static_cast<unsigned char>(text[0]);
  if (first < 0x80) return first;
  const auto length = utf8_step(text);
  char32_t code_point = first & (0xff >> (length + 1));
  for (int place = 1; place < length; ++place) code_point = code_point << 6 | (text[place] & 0x3f);
  return code_point;
}

std::size_t last_character(std::string_view text) {
  auto place = text.size() - 1;
  while ((static_cast<unsigned char>(text[place]) & 0xc0) == 0x80) --place;
  return place;
}

bool is_white_space(char32_t code_point) {
  if (code_point <= 0x20) return code_point == 0x20 || (code_point >= 9 && code_point <= 13);
  return code_point == 0x85 || code_point == 0xa0 || code_point == 0x1680 ||
         (code_point >= 0x2000 && code_point <= 0x200a) || code_point == 0x2028 || code_point == 0x2029 ||
         code_point == 0x202f || code_point == 0x205f || code_point == 0x3000;
}

}  // namespace accel::sources
