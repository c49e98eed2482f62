#include "reference/optim/schedules/scheduled_optimizer.hpp"

#include <torch/optim/optimizer.h>

#include "reference/core/errors.hpp"

namespace accel {

std::vector<double> PerGroup::of(const torch::optim::Optimizer& optimizer, const char* name) const {
  const auto num_groups = optimizer.param_groups().size();
  if (for_all_) return std::vector<double>(num_groups, values_.front());
  check_argument(values_.size() == num_groups,
                 "{}: {} values for {} parameter groups; expected one number, or a list with one for each group", name,
                 values_.size(), num_groups);
  return values_;
}

}  // namespace accel
