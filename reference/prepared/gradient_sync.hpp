#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/tree/value.hpp"

namespace accel {

class DistributedDataParallel;
struct UnaveragedGradients;
enum class GradientOrigin : std::uint8_t;

/// How backward synchronizes a prepared model's gradients over ranks, and the state of that in checkpoints.
///
/// Every rank must call functions marked "Collective", in the same order. Thread rule: the rank's thread.
class GradientSync {
 public:
  enum class Override {
    kSuspended,    ///< backward synchronizes nothing: no_sync
    kNextBackward  ///< the next backward synchronizes, even gradients of forwards under kSuspended
  };
  /// Undoes a change; empty if nothing changed.
  using Restore = std::function<void()>;

  virtual ~GradientSync() = default;

  [[nodiscard]] virtual Restore override_sync(Override override) = 0;
  /// Whether the next backward averages gradients over other ranks.
  [[nodiscard]] virtual bool synchronizes() const = 0;
  /// Begins several micro-batches, whose forwards and backwards may alternate. Gradients add up on this rank until
  /// `end_micro_batches`, which averages them if the model synchronizes. Collective.
  virtual void begin_micro_batches() = 0;
  virtual void end_micro_batches() = 0;
  /// The same without averaging, after an error.
  virtual void abandon_micro_batches() noexcept = 0;
  /// For join_uneven_inputs: the DDP wrapper whose collectives a rank without batches repeats; null if there is none.
  /// Throws StateError if the model's collectives cannot be repeated.
  [[nodiscard]] virtual DistributedDataParallel* joinable() const = 0;
  /// Gradients since the last call that should have been averaged but were not. Throws StateError if the last backward
  /// pass left parameters without a gradient that averaging waits for.
  [[nodiscard]] virtual UnaveragedGradients take_unaveraged() = 0;
  /// The program has averaged the gradients itself: those that it has written count as averaged.
  virtual void accept_gradients() {}
  /// The origin of the last value that backward added to this parameter's gradient; empty if the model does not average
  /// its gradient.
  [[nodiscard]] virtual std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const = 0;

  /// What determines the bits of later steps, such as DDP's buckets. Call it between steps. Collective.
  [[nodiscard]] virtual Value sync_state() const = 0;
  virtual void load_sync_state(const Value& state) = 0;
  /// For a checkpoint inside an accumulation window: the sizes of a parameter's gradient when `sync_state` was saved.
  [[nodiscard]] virtual std::vector<std::int64_t> gradient_sizes(const at::Tensor& parameter,
                                                                 const Value& sync_state) const = 0;
  /// Loads gradients by name, as they were when `sync_state` was saved.
  virtual void load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) = 0;
};

}  // namespace accel
