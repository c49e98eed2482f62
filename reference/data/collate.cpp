#include "reference/data/collate.hpp"

#include <ATen/ATen.h>

namespace accel::detail {

at::Tensor stack_samples(const std::vector<at::Tensor>& samples) {
  for (const auto& sample : samples) {
    check_argument(
        sample.sizes() == samples.front().sizes(),
        "default_collate: samples of shape {} and {}; expected one shape, or give the DataLoader a collate function",
        c10::str(samples.front().sizes()), c10::str(sample.sizes()));
  }
  return at::stack(samples);
}

at::Tensor tensor_of_numbers(const std::vector<double>& values) { return at::tensor(values, at::kDouble); }
at::Tensor tensor_of_numbers(const std::vector<std::int64_t>& values) { return at::tensor(values, at::kLong); }
at::Tensor tensor_of_flags(const std::vector<std::int64_t>& values) { return tensor_of_numbers(values).to(at::kBool); }

}  // namespace accel::detail
