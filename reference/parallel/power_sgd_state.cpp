#include "reference/parallel/power_sgd_state.hpp"

#include <ATen/ATen.h>

#include "reference/core/random.hpp"
#include "reference/parallel/comm_hook.hpp"

namespace accel {

PowerSGDState::PowerSGDState(const PowerSGDOptions& options_of_user, Group group_of_ranks)
    : options(options_of_user),
      group(std::move(group_of_ranks)),
      random(static_cast<std::uint32_t>(options_of_user.random_seed)) {}

void PowerSGDState::count_step(const c10d::GradBucket& bucket) {
  if (bucket.isLast()) ++step;
}

std::optional<at::Tensor> PowerSGDState::add_error(const c10d::GradBucket& bucket, at::Tensor& buffer) {
  if (!options.use_error_feedback) return std::nullopt;
  if (const auto error = errors.find(bucket.getIndex()); error != errors.end()) buffer.add_(error->second);
  return buffer.clone();
}

void PowerSGDState::keep_error(const c10d::GradBucket& bucket, const std::optional<at::Tensor>& before,
                               const at::Tensor& after) {
  if (before) errors[bucket.getIndex()] = *before - after;
}

bool PowerSGDState::make_factors(const c10d::GradBucket& bucket, const at::Tensor& like,
                                 const std::vector<std::int64_t>& shape_of_p,
                                 const std::vector<std::int64_t>& shape_of_q) {
  const auto index = bucket.getIndex();
  if (options.warm_start && ps.contains(index)) return false;
  ps[index] = at::empty(shape_of_p, like.options());
  qs[index] = at::empty(shape_of_q, like.options());
  return true;
}

void PowerSGDState::end_step(const c10d::GradBucket& bucket) {
  if (!options.warm_start) {
    ps.clear();
    qs.clear();
  }
  count_step(bucket);
}

at::Generator PowerSGDState::next_generator() { return make_generator(random.randint(1'000'000'000)); }

void PowerSGDState::sum(const at::Tensor& tensor) const {
  if (tensor.numel() > 0) sum_over_ranks(group, tensor)->wait();
}

}  // namespace accel
