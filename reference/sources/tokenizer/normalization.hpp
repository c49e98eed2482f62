#pragma once

#include <string>
#include <string_view>

namespace accel::sources {

/// Unicode's normalization form NFC of valid UTF-8 text: letters and their accents as one character where one exists.
/// Thread rule: a pure function.
std::string to_nfc(std::string_view text);

}  // namespace accel::sources
