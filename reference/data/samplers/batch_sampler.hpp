#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/core/value.hpp"

namespace accel {

/// Batches of indices in an order of the user's own, for DataLoaderOptions::batch_sampler.
///
///     class ByLength : public accel::BatchSampler { ... };
///     accel::DataLoader loader(texts, {.batch_sampler = std::make_shared<ByLength>(...)});
///
/// Every rank walks through all batches and keeps its own (BatchSamplerShard), so all ranks' samplers must yield the
/// same ones: draw from `generator()`, which takes rank 0's state before each pass. A pass is resumed by walking
/// through its batches again, from the same state: they must depend on nothing else. Thread rule: the rank's thread.
/// Source: torch/utils/data/sampler.py, BatchSampler.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Number of batches of a pass; nothing if it is not known.
  [[nodiscard]] virtual std::optional<std::int64_t> size() const { return std::nullopt; }
  /// Samples of every batch, but for a shorter last one; nothing if batches vary.
  [[nodiscard]] virtual std::optional<std::int64_t> batch_size() const { return std::nullopt; }
  /// There is no shorter last batch; where every rank reads, a step that some ranks lack is dropped too.
  [[nodiscard]] virtual bool drop_last() const { return false; }
  [[nodiscard]] virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  virtual void set_epoch(std::int64_t epoch) { (void)epoch; }

  /// What the next pass depends on, but for draws of the default generator: here the generator's state.
  [[nodiscard]] virtual Value state_dict() const;
  virtual void load_state_dict(const Value& state);

  virtual void begin_pass() = 0;
  /// The next batch of indices, never an empty one; nothing at the end of the pass.
  virtual std::optional<std::vector<std::int64_t>> next() = 0;
};

/// What one rank reads in one step.
struct Step {
  std::vector<std::int64_t> indices = {};
  std::int64_t remainder = 0;  ///< samples of the step over all ranks that are no duplicates; 0: the step is a full one
};

/// The steps of one rank, pass after pass. A place in an epoch is a number of units that all ranks together have read:
/// samples, or batches of a user's batch sampler. Thread rule: the rank's thread.
class StepSource {
 public:
  virtual ~StepSource() = default;
  /// Number of steps of a whole pass; nothing if it is not known.
  [[nodiscard]] virtual std::optional<std::int64_t> size() const = 0;
  [[nodiscard]] virtual std::int64_t units_per_step() const = 0;
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// What the next pass depends on, but for draws of the default generator.
  [[nodiscard]] virtual Value state_dict() const = 0;
  virtual void load_state_dict(const Value& state) = 0;
  /// Starts a pass behind its first `num_read` units. It draws when its first step is asked for, or at once, so that
  /// the caller's default generator is the one that it draws from.
  virtual void begin_pass(std::int64_t num_read = 0, bool draws_at_once = false) = 0;
  virtual std::optional<Step> next() = 0;
};

}  // namespace accel
