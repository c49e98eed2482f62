#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

/// What the checks of batches have in common. Thread rule: pure functions.
namespace accel::metrics {

inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();  ///< of a metric without samples

/// "Float [2, 4]".
std::string described(const at::Tensor& tensor);
/// Adds the problems of `targets`, which are classes of `num_samples` samples.
void check_targets(std::vector<std::string>& problems, const at::Tensor& targets, std::int64_t num_samples);
/// Adds a problem if a class is not 0 to `num_classes` - 1. `what`: "targets" ...
void check_range(std::vector<std::string>& problems, const char* what, const at::Tensor& classes,
                 std::int64_t num_classes);

}  // namespace accel::metrics
