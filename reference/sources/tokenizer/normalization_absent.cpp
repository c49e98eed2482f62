#include "reference/core/absent_library.hpp"
#include "reference/sources/tokenizer/normalization.hpp"

namespace accel::sources {

std::string to_nfc(std::string_view /*text*/) {
  throw_absent("a tokenizer with the normalizer NFC", "utf8proc", "ACCEL_UTF8PROC");
}

}  // namespace accel::sources
