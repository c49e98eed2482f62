#include "reference/tracking/numbers.hpp"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <cmath>

namespace accel::tracking {

std::optional<double> number_of(const Value& value) {
  if (value.is<bool>()) return value.as<bool>() ? 1 : 0;
  if (value.is<std::int64_t>()) return static_cast<double>(value.as<std::int64_t>());
  if (value.is<double>()) return value.as<double>();
  if (!value.is<at::Tensor>()) return std::nullopt;
  const auto& tensor = value.as<at::Tensor>();
  if (!tensor.defined() || tensor.dim() != 0 || tensor.is_complex()) return std::nullopt;
  return tensor.item().toDouble();
}

std::string number_text(double value) {
  auto text = fmt::format("{}", value);
  if (std::isfinite(value) && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace accel::tracking
