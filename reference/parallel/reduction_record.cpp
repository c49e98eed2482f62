#include "reference/parallel/reduction_record.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

// Detects gradients that were never averaged. DDP cannot see this: without a forward of the prepared model its reducer
// stays passive, and training would silently continue with different models on different ranks.
namespace accel {

using torch::autograd::variable_list;

ReductionRecord::ReductionRecord(const std::vector<at::Tensor>& parameters, std::function<GradientOrigin()> origin)
    : origin_(std::move(origin)), origins_(parameters.size(), GradientOrigin::kReduced) {
  for (std::size_t place = 0; place < parameters.size(); ++place) {
    // A post-hook of the accumulator runs after c10d's own hook on the same node, and also for passes that c10d
    // ignores. The record keeps the accumulator alive: a parameter only holds a weak reference to it, and hooks die
    // with it.
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[place]);
    const auto key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, place](const variable_list& outputs, const variable_list&) {
          origins_[place] = origin_();
          return outputs;
        }));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

void ReductionRecord::will_reduce_unreduced() {
  std::replace(origins_.begin(), origins_.end(), GradientOrigin::kUnreduced, GradientOrigin::kReduced);
}

ReductionRecord::~ReductionRecord() {
  for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

}  // namespace accel
