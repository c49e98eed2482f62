#include "reference/metrics/batch_check.hpp"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

namespace accel::metrics {

std::string described(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", c10::toString(tensor.scalar_type()), fmt::join(tensor.sizes(), ", "));
}

void check_targets(std::vector<std::string>& problems, const at::Tensor& targets, std::int64_t num_samples) {
  if (!at::isIntegralType(targets.scalar_type(), /*includeBool=*/true) || targets.dim() != 1)
    problems.push_back(fmt::format("targets {}; expected classes of [n]", described(targets)));
  else if (targets.size(0) != num_samples)
    problems.push_back(fmt::format("{} targets for {} samples", targets.size(0), num_samples));
}

void check_range(std::vector<std::string>& problems, const char* what, const at::Tensor& classes,
                 std::int64_t num_classes) {
  if (classes.numel() == 0) return;
  const auto numbers = classes.to(at::kLong);
  const auto lowest = numbers.min().item<std::int64_t>(), highest = numbers.max().item<std::int64_t>();
  if (lowest < 0 || highest >= num_classes)
    problems.push_back(
        fmt::format("{}: a class of {}; expected 0 to {}", what, lowest < 0 ? lowest : highest, num_classes - 1));
}

}  // namespace accel::metrics
