#pragma once

#include "tests/sim/report/browser.hpp"

namespace accel::testing {

enum class Vision { kNormal, kProtanopia, kDeuteranopia, kTritanopia };

/// Returns how different two colours look (CIE76; 2.3 is just noticeable), also to a person who lacks one type of
/// cone. Source: Machado, Oliveira, Fernandes: A Physiologically-based Model for Simulation of Color Vision
/// Deficiency, 2009.
double difference(const Colour& a, const Colour& b, Vision vision);

/// Returns how much a colour stands out from its background, from 1 to 21. Source: WCAG 2.2, contrast ratio.
double contrast(const Colour& a, const Colour& b);

}  // namespace accel::testing
