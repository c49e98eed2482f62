#pragma once

#include <string_view>

namespace accel::sim::report {

/// The page's CSS. Blue and orange are Okabe and Ito's (Color Universal Design, 2008); their pinks and reds come close
/// to one of both for some eyes, so the third part of a step is between them. A test measures it.
extern const std::string_view kPageStyle;

}  // namespace accel::sim::report
