#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/value.hpp"

namespace accel {

/// What the micro-batches of one accumulation window hold, over all ranks: by it gradients are weighted exactly, and
/// schedules count samples.
///
/// Weighting: a rank's loss of n items (their mean) is scaled by n / unit, so that a window's gradient on P ranks that
/// average is sum(n_i g_i) / (unit P); times `unit P / sum(n_i)` it is that of one batch of all items. The unit is a
/// power of two near a rank's items in the window before, so that scaled losses stay of the size of losses, and bits
/// are kept.
///
/// Thread rule: the rank's thread.
class GradientWindow {
 public:
  /// What is known of a micro-batch while it lives: optimizers that step in turn end several windows in it.
  struct MicroBatch {
    bool is_counted = false;     // its samples
    bool closed_longer = false;  // it has ended a window of several micro-batches
  };
  /// A micro-batch begins: losses of one micro-batch are of the same items, and its samples count once. It ends with
  /// the result.
  [[nodiscard]] std::shared_ptr<MicroBatch> begin_micro_batch();
  /// The micro-batch at hand holds this; told by each of its losses. Outside `accumulate` the samples of a loader's
  /// `batch` count once. Throws ArgumentError if they differ in their items, StateError if items come behind the end of
  /// a window that they belonged to.
  void add(double items, double samples, std::optional<std::int64_t> batch = std::nullopt);
  /// What a loss of so many items is scaled by.
  [[nodiscard]] double loss_scale(double items) const { return items / unit_; }

  [[nodiscard]] bool is_empty() const { return !any_; }
  struct Total {
    double items = 0, samples = 0;
    double gradient_scale = 1;  ///< what the averaged gradients are multiplied by
  };
  /// The window ends. Collective.
  Total finish(const Group& group, c10::Device device);
  /// Drops what the window holds: of a rank that has no more batches, whose gradients do not count.
  void drop();

  /// What it holds, and the unit. Between micro-batches.
  [[nodiscard]] Value state_dict() const {
    return Value::Dict{{"items", items_}, {"samples", samples_}, {"unit", unit_}, {"any", any_}};
  }
  /// Throws ArgumentError if it is no such state.
  void load_state_dict(const Value& state);

 private:
  std::weak_ptr<MicroBatch> micro_batch_;  // none outside `accumulate`
  int num_micro_batches_ = 0;
  std::optional<double> items_of_micro_batch_;
  std::optional<std::int64_t> counted_batch_;
  double items_ = 0, samples_ = 0, unit_ = 1;
  bool any_ = false;
};

}  // namespace accel
