#include "reference/core/absent_library.hpp"
#include "reference/sources/tokenizer/text_splitter.hpp"

namespace accel::sources {

TextSplitter::TextSplitter(std::string_view /*pattern*/, const SplitOptions& /*options*/) {
  throw_absent("a tokenizer", "PCRE2", "ACCEL_PCRE2");
}

// Nothing calls these functions, because the constructor throws.
std::vector<TextPiece> TextSplitter::find_matches(std::string_view /*text*/) const { return {}; }
std::vector<std::string_view> TextSplitter::split(std::string_view /*text*/) const { return {}; }
bool TextSplitter::matches_start(std::string_view /*text*/) const { return false; }

}  // namespace accel::sources
