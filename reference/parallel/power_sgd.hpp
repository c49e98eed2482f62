#pragma once

#include <ATen/core/Tensor.h>

#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/options.hpp"

namespace c10d {
class GradBucket;
}  // namespace c10d

/// PowerSGD: of a matrix of gradients M, only P and Q with M = P Q^T are sent, a few columns each; what that loses may
/// be added to the next step's gradients (error feedback).
///
/// Thread rule: the rank's thread; reduce() waits for collectives. See Note [PowerSGD waits].
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.
namespace accel {

class CommHook;

/// One P and Q for each parameter; parameters that would hardly shrink are sent as they are.
std::unique_ptr<CommHook> make_power_sgd_hook(const PowerSGDOptions& options, const Group& group);

/// One P and Q for a whole bucket, seen as a square. torch 2.11's own raises AssertionError in its first step.
std::unique_ptr<CommHook> make_batched_power_sgd_hook(const PowerSGDOptions& options, const Group& group);

/// Makes the columns of each matrix orthonormal, in place: by QR, or by Gram-Schmidt for at most two columns and for
/// half precision. `epsilon` is added to norms in Gram-Schmidt, for columns of zeros.
///
/// Shape: (n, m) or (batch, n, m) with m <= n. Thread rule: a plain function on values.
/// Source: torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, _orthogonalize.
void orthogonalize(at::Tensor matrices, double epsilon = 0);

/// numpy.random.RandomState: a Mersenne twister with numpy's legacy seeding, which is the standard library's as well.
///
///     NumpyRandomState random(/*seed=*/0);
///     const auto seed = random.randint(1'000'000'000);
///
/// Thread rule: one thread at a time. Source: numpy/random/mtrand.pyx, randint; distributions.c, masked rejection.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  /// From 0 to `high` - 1. `high`: 2 to 2^32 - 1.
  std::uint32_t randint(std::uint32_t high) {
    const std::uint32_t largest = high - 1,
                        mask = static_cast<std::uint32_t>((std::uint64_t{1} << std::bit_width(largest)) - 1);
    for (;;) {
      if (const auto value = static_cast<std::uint32_t>(engine_()) & mask; value <= largest) return value;
    }
  }

 private:
  std::mt19937 engine_;
};

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
