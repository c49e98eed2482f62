// Colour differences as people with and without colour vision deficiencies see them. The matrices apply to linear
// RGB, from Machado et al. (2009) with severity 1.0.
#include "tests/sim/report/colour_vision.hpp"

#include <algorithm>
#include <cmath>

namespace accel::testing {
namespace {

using Triple = std::array<double, 3>;
using Matrix = std::array<Triple, 3>;

constexpr Matrix kNormal = {{{1, 0, 0}, {0, 1, 0}, {0, 0, 1}}};
constexpr Matrix kProtanopia = {
    {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}}};
constexpr Matrix kDeuteranopia = {
    {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}}};
constexpr Matrix kTritanopia = {
    {{1.255528, -0.076749, -0.178779}, {-0.078411, 0.930809, 0.147602}, {0.004733, 0.691367, 0.303900}}};
constexpr Matrix kToXyz = {{{0.4124, 0.3576, 0.1805}, {0.2126, 0.7152, 0.0722}, {0.0193, 0.1192, 0.9505}}};

Triple times(const Matrix& matrix, const Triple& values) {
  Triple result{};
  for (std::size_t row = 0; row < 3; ++row) {
    for (std::size_t column = 0; column < 3; ++column) result[row] += matrix[row][column] * values[column];
  }
  return result;
}

// The transfer function of sRGB.
Triple linear(const Colour& colour) {
  Triple values{};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    const auto value = colour[channel] / 255.0;
    values[channel] = value <= 0.04045 ? value / 12.92 : std::pow((value + 0.055) / 1.055, 2.4);
  }
  return values;
}

const Matrix& matrix_of(Vision vision) {
  switch (vision) {
    case Vision::kProtanopia: return kProtanopia;
    case Vision::kDeuteranopia: return kDeuteranopia;
    case Vision::kTritanopia: return kTritanopia;
    default: return kNormal;
  }
}

// Converts to CIELAB with the white point D65, in which distances correspond to perceived differences.
Triple lab(const Colour& colour, Vision vision) {
  auto seen = times(matrix_of(vision), linear(colour));
  for (auto& value : seen) value = std::clamp(value, 0.0, 1.0);
  const auto xyz = times(kToXyz, seen);
  const auto root = [](double value) { return value > 0.008856 ? std::cbrt(value) : 7.787 * value + 16.0 / 116; };
  const auto x = root(xyz[0] / 0.9505), y = root(xyz[1]), z = root(xyz[2] / 1.089);
  return {116 * y - 16, 500 * (x - y), 200 * (y - z)};
}

}  // namespace

double difference(const Colour& a, const Colour& b, Vision vision) {
  const auto first = lab(a, vision), second = lab(b, vision);
  return std::hypot(first[0] - second[0], first[1] - second[1], first[2] - second[2]);
}

// Relative luminance and contrast as WCAG 2.2 defines them.
double contrast(const Colour& a, const Colour& b) {
  const auto first = times(kToXyz, linear(a))[1], second = times(kToXyz, linear(b))[1];
  return (std::max(first, second) + 0.05) / (std::min(first, second) + 0.05);
}

}  // namespace accel::testing
