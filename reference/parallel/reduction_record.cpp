#include "reference/parallel/reduction_record.hpp"

#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>

// Detects gradients that were never averaged. DDP cannot see this: without a forward of the prepared model its reducer
// stays passive, and training would silently continue with different models on different ranks.
namespace accel {

using torch::autograd::variable_list;

ReductionRecord::ReductionRecord(const std::vector<at::Tensor>& parameters, std::function<GradientOrigin()> origin)
    : origin_(std::move(origin)),
      marks_(parameters),
      origins_(parameters.size(), GradientOrigin::kReduced),
      passes_(parameters.size(), 0) {
  for (std::size_t place = 0; place < parameters.size(); ++place) {
    // A post-hook of the accumulator runs after c10d's own hook on the same node, and also for passes that c10d
    // ignores. The record keeps the accumulator alive: a parameter only holds a weak reference to it, and hooks die
    // with it.
    auto accumulator = torch::autograd::impl::grad_accumulator(parameters[place]);
    const auto key = accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, place](const variable_list& outputs, const variable_list&) {
          origins_[place] = origin_();
          passes_[place] = pass_;
          marks_.note_arrival(place);
          return outputs;
        }));
    hooks_.emplace_back(std::move(accumulator), key);
  }
}

void ReductionRecord::continue_from(const ReductionRecord& other) {
  marks_.continue_from(other.marks_);
  const auto &own = marks_.parameters(), &others = other.marks_.parameters();
  for (std::size_t place = 0; place < own.size(); ++place) {
    const auto found =
        std::ranges::find_if(others, [&](const auto& parameter) { return parameter.is_same(own[place]); });
    if (found != others.end()) origins_[place] = other.origins_[found - others.begin()];
  }
}

bool ReductionRecord::sees(std::size_t place) const {
  return torch::autograd::impl::try_get_grad_accumulator(marks_.parameters()[place]) == hooks_[place].first;
}

void ReductionRecord::will_reduce_all() {
  for (std::size_t place = 0; place < origins_.size(); ++place) marks_.note_arrival(place);
  std::replace(origins_.begin(), origins_.end(), GradientOrigin::kUnreduced, GradientOrigin::kReduced);
}

ReductionRecord::~ReductionRecord() {
  for (const auto& [accumulator, key] : hooks_) accumulator->del_post_hook(key);
}

}  // namespace accel
