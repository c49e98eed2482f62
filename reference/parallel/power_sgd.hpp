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
#include "reference/config/plugins/options.hpp"

namespace c10d {
class GradBucket;
}  // namespace c10d

/// PowerSGD: low-rank gradient compression. Instead of a gradient matrix M it sends P and Q of a few columns each, with
/// M = P Q^T approximately; error feedback adds what one step loses to the next step's gradients.
///
/// Thread rule: the rank's thread; reduce() waits for collectives. See Note [PowerSGD waits]. Source:
/// torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py.
namespace accel {

class CommHook;

/// One P and Q per parameter; parameters that would hardly shrink are sent uncompressed.
std::unique_ptr<CommHook> make_power_sgd_hook(const PowerSGDOptions& options, const Group& group);

/// One P and Q per bucket, viewed as a square matrix. torch 2.11's version raises AssertionError in its first step.
std::unique_ptr<CommHook> make_batched_power_sgd_hook(const PowerSGDOptions& options, const Group& group);

/// Makes the columns of each matrix orthonormal, in place: by QR, or by Gram-Schmidt for at most two columns and for
/// half precision. Gram-Schmidt adds `epsilon` to norms, which protects columns of zeros.
///
/// Shape: (n, m) or (batch, n, m) with m <= n. Thread rule: a plain function on values. Source:
/// torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py, _orthogonalize.
void orthogonalize(at::Tensor matrices, double epsilon = 0);

/// numpy.random.RandomState: a Mersenne twister with numpy's legacy seeding, which equals that of std::mt19937.
///
///     NumpyRandomState random(/*seed=*/0);
///     const auto seed = random.randint(1'000'000'000);
///
/// Thread rule: one thread at a time. Source: numpy/random/mtrand.pyx, randint; distributions.c, masked rejection.
class NumpyRandomState {
 public:
  explicit NumpyRandomState(std::uint32_t seed) : engine_(seed) {}

  /// Returns a number from 0 to `high` - 1. `high`: 2 to 2^32 - 1.
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

/// State that both variants of PowerSGD keep between steps, by bucket. Source: PowerSGDState.
struct PowerSGDState {
  PowerSGDState(const PowerSGDOptions& options_of_user, Group group_of_ranks);

  /// Whether gradients are still averaged uncompressed.
  [[nodiscard]] bool is_warming_up() const { return step < options.start_powerSGD_iter; }
  void count_step(const c10d::GradBucket& bucket);
  /// Adds the last step's error of this bucket to `buffer`. Returns a copy of the sum, from which keep_error computes
  /// this step's error; nullopt without error feedback.
  std::optional<at::Tensor> add_error(const c10d::GradBucket& bucket, at::Tensor& buffer);
  void keep_error(const c10d::GradBucket& bucket, const std::optional<at::Tensor>& before, const at::Tensor& after);
  /// Allocates P and Q of this bucket in these shapes, unless a warm start reuses the last step's. Returns whether it
  /// did.
  bool make_factors(const c10d::GradBucket& bucket, const at::Tensor& like, const std::vector<std::int64_t>& shape_of_p,
                    const std::vector<std::int64_t>& shape_of_q);
  void end_step(const c10d::GradBucket& bucket);
  /// Returns a generator for random Qs, equal on all ranks. The rank's own generator is not advanced.
  at::Generator next_generator();
  void sum(const at::Tensor& tensor) const;  ///< blocks until the sum is complete

  PowerSGDOptions options = {};
  Group group = {};
  NumpyRandomState random;
  std::map<std::size_t, at::Tensor> errors = {}, ps = {}, qs = {};
  int step = 0;
};

}  // namespace accel
