#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/tree/value.hpp"

namespace accel {

/// Counts items and samples of the micro-batches of one accumulation window, over all ranks. The counts are used to
/// weight gradients exactly, and by schedules that count samples.
///
/// Weighting: the mean loss of n items on a rank is multiplied by n / unit. The gradient of a window, averaged over P
/// ranks, is then sum(n_i g_i) / (unit P); multiplied by `unit P / sum(n_i)` it is that of one batch of all items. The
/// unit is a power of two near the number of items per rank in the previous window, so scaled losses have the magnitude
/// of losses, and scaling by the unit is exact.
///
/// Thread rule: the rank's thread.
class GradientWindow {
 public:
  /// The state of a micro-batch. Several optimizers that step one after the other may end several windows in it.
  struct MicroBatch {
    bool is_counted = false;           // its samples have been counted
    bool ended_longer_window = false;  // it ended a window of several micro-batches
  };
  /// Begins a micro-batch, which ends when the result is destroyed. All losses of a micro-batch have the same items,
  /// and its samples count once.
  [[nodiscard]] std::shared_ptr<MicroBatch> begin_micro_batch();
  /// Adds the counts of the current micro-batch; called for each of its losses. Outside `accumulate`, the samples of a
  /// loader's `batch` count once. Throws ArgumentError if losses of a micro-batch have different items, and StateError
  /// if items are added after their window has ended.
  void add(double items, double samples, std::optional<std::int64_t> batch = std::nullopt);
  /// The factor for a loss of `items` items.
  [[nodiscard]] double loss_scale(double items) const { return items / unit_; }

  [[nodiscard]] bool is_empty() const { return !any_; }
  struct Total {
    double items = 0, samples = 0;
    double gradient_scale = 1;  ///< the factor for the averaged gradients
  };
  /// Ends the window and returns its sums over all ranks. Collective.
  Total finish(const Group& group);
  /// Clears the counts, for a rank without further batches, whose gradients do not count.
  void drop();

  /// The counts and the unit. Call it between micro-batches.
  [[nodiscard]] Value state_dict() const {
    return Value::Dict{{"items", items_}, {"samples", samples_}, {"unit", unit_}, {"any", any_}};
  }
  /// Throws ArgumentError if `state` is not the state of a window.
  void load_state_dict(const Value& state);

 private:
  std::weak_ptr<MicroBatch> micro_batch_;  // empty outside `accumulate`
  int num_micro_batches_ = 0;
  std::optional<double> items_of_micro_batch_;
  std::optional<std::int64_t> counted_batch_;
  double items_ = 0, samples_ = 0, unit_ = 1;
  bool any_ = false;
};

}  // namespace accel
