#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/options.hpp"
#include "reference/parallel/numpy_random_state.hpp"

namespace c10d {
class GradBucket;
}  // namespace c10d

namespace accel {

/// What both kinds of PowerSGD keep from step to step, by bucket. Source: PowerSGDState.
struct PowerSGDState {
  PowerSGDState(const PowerSGDOptions& options_of_user, Group group_of_ranks);

  /// Whether gradients are still averaged plainly.
  [[nodiscard]] bool is_warming_up() const { return step < options.start_powerSGD_iter; }
  void count_step(const c10d::GradBucket& bucket);
  /// Adds what the last step lost of this bucket. Returns a copy, to see what this step will lose; none without error
  /// feedback.
  std::optional<at::Tensor> add_error(const c10d::GradBucket& bucket, at::Tensor& buffer);
  void keep_error(const c10d::GradBucket& bucket, const std::optional<at::Tensor>& before, const at::Tensor& after);
  /// Makes P and Q of this bucket, of these shapes, unless the last step's are still good. Returns whether it did.
  bool make_factors(const c10d::GradBucket& bucket, const at::Tensor& like, const std::vector<std::int64_t>& shape_of_p,
                    const std::vector<std::int64_t>& shape_of_q);
  void end_step(const c10d::GradBucket& bucket);
  /// A generator for random Qs, equal on all ranks. The rank's own is left alone.
  at::Generator next_generator();
  void sum(const at::Tensor& tensor) const;  ///< waits

  PowerSGDOptions options = {};
  Group group = {};
  NumpyRandomState random;
  std::map<std::size_t, at::Tensor> errors = {}, ps = {}, qs = {};
  int step = 0;
};

}  // namespace accel
