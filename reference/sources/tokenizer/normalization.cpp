#include "reference/sources/tokenizer/normalization.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

#include "reference/core/errors.hpp"

namespace accel::sources {
namespace {

bool is_ascii(char character) { return static_cast<unsigned char>(character) < 0x80; }

void append_nfc(std::string_view part, std::string& result) {
  utf8proc_uint8_t* bytes = nullptr;
  const auto length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(part.data()), static_cast<utf8proc_ssize_t>(part.size()),
                   &bytes, static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
  const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owner(bytes, &std::free);
  ensure(length >= 0, "utf8proc cannot normalize {} bytes: {}", part.size(), utf8proc_errmsg(length));
  result.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(length));
}

}  // namespace

// ASCII characters never change, but one may be composed with the accents that follow it. So only runs of other
// characters are normalized, each with the ASCII character before it, which also limits the memory that utf8proc uses.
std::string to_nfc(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    auto ascii_end = std::find_if_not(text.begin(), text.end(), is_ascii);
    if (ascii_end != text.end() && ascii_end != text.begin()) --ascii_end;
    result.append(text.begin(), ascii_end);
    text.remove_prefix(static_cast<std::size_t>(ascii_end - text.begin()));
    if (text.empty()) break;
    const auto run_end = std::find_if(text.begin() + 1, text.end(), is_ascii);
    append_nfc(text.substr(0, static_cast<std::size_t>(run_end - text.begin())), result);
    text.remove_prefix(static_cast<std::size_t>(run_end - text.begin()));
  }
  return result;
}

}  // namespace accel::sources
