#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/data/samplers/last_step.hpp"
#include "reference/tree/value.hpp"

namespace accel {

/// Interface for user-defined batches of indices, for DataLoaderOptions::batch_sampler.
///
///     class ByLength : public accel::BatchSampler { ... };
///     accel::DataLoader loader(texts, {.batch_sampler = std::make_shared<ByLength>(...)});
///
/// Every rank iterates over all batches and keeps its own (BatchSamplerShard), so the samplers of all ranks must yield
/// the same batches: draw from `generator()`, which gets rank 0's state before each pass. A resumed pass iterates over
/// its batches again from the same state, so they must depend on nothing else.
/// Thread rule: the rank's thread.
/// Source: torch/utils/data/sampler.py, BatchSampler.
class BatchSampler {
 public:
  virtual ~BatchSampler() = default;
  /// Number of batches of a pass; nullopt if unknown.
  [[nodiscard]] virtual std::optional<std::int64_t> size() const { return std::nullopt; }
  /// Number of samples of every batch except a shorter last one; nullopt if batches vary.
  [[nodiscard]] virtual std::optional<std::int64_t> batch_size() const { return std::nullopt; }
  /// True if there is no shorter last batch. Where every rank reads, an incomplete last step is dropped too.
  [[nodiscard]] virtual bool drop_last() const { return false; }
  [[nodiscard]] virtual std::optional<at::Generator> generator() const { return std::nullopt; }
  virtual void set_epoch(std::int64_t epoch) { (void)epoch; }

  /// Returns the state that determines the next pass, except draws from the default generator. The default
  /// implementation returns size(), batch_size() and the state of the generator.
  [[nodiscard]] virtual Value state_dict() const;
  virtual void load_state_dict(const Value& state);

  virtual void begin_pass() = 0;
  /// Returns the next batch of indices, which is never empty; nullopt at the end of the pass.
  virtual std::optional<std::vector<std::int64_t>> next() = 0;
};

/// The indices that one rank reads in one step.
struct Step {
  std::vector<std::int64_t> indices = {};
  std::int64_t remainder = 0;  ///< samples of the step over all ranks that are not duplicates; 0: a full step
};

/// The steps of one rank, pass after pass. A position in an epoch is a number of units that all ranks together have
/// read: samples, or batches of a user's batch sampler. Thread rule: the rank's thread.
class StepSource {
 public:
  virtual ~StepSource() = default;
  /// Number of steps of a complete pass; nullopt if unknown.
  [[nodiscard]] virtual std::optional<std::int64_t> size() const = 0;
  [[nodiscard]] virtual std::int64_t units_per_step() const = 0;
  virtual void set_epoch(std::int64_t epoch) = 0;
  /// Returns the state that determines the next pass, except draws from the default generator.
  [[nodiscard]] virtual Value state_dict() const = 0;
  virtual void load_state_dict(const Value& state) = 0;
  /// Starts a pass after its first `num_read` units. It draws when its first step is requested or, with
  /// `draws_at_once`, immediately, so that it uses the caller's default generator.
  virtual void begin_pass(std::int64_t num_read = 0, bool draws_at_once = false) = 0;
  virtual std::optional<Step> next() = 0;
  /// Returns what the other ranks do in this rank's last step. Valid once `next` has returned nullopt.
  [[nodiscard]] virtual LastStep last_step() const = 0;
};

}  // namespace accel
