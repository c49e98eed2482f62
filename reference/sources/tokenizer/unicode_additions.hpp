#pragma once

#include <string_view>
#include <vector>

namespace accel::sources {

/// Code points of one general category that Unicode 15, 15.1 and 16 added. A PCRE2 of Unicode 14 lacks them.
struct CategoryRange {
  char32_t first = 0, last = 0;
  std::string_view category = {};
};

/// Sorted by code point. Source: the categories of `tokenizers` 0.23 (Oniguruma 6.9.10), minus those of PCRE2 10.42.
const std::vector<CategoryRange>& unicode_additions();

}  // namespace accel::sources
