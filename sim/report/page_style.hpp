#pragma once

#include <string_view>

namespace accel::sim::detail {

/// The page's CSS. Colours are Okabe and Ito's, which most colour-blind people tell apart; parts that stand next to each other
/// differ in lightness too. (Okabe, Ito: Color Universal Design, 2008.)
extern const std::string_view kPageStyle;

}  // namespace accel::sim::detail
