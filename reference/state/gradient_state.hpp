#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/config/plugins/options.hpp"

namespace accel {

/// State that an iteration over a prepared loader publishes to its rank.
struct ActiveLoader {
  bool end_of_dataloader = false;  ///< true from before the last batch is handed out
  /// Samples of the last step over all ranks that are not duplicates; 0: a full step; -1: unknown or drop_last.
  std::int64_t remainder = -1;
  bool fills_up = true;  ///< the last step has equal numbers of samples on all ranks, padded with duplicates
  std::optional<std::int64_t> num_rows = {};    ///< samples of this rank's current batch, duplicates included
  std::optional<std::int64_t> batch_size = {};  ///< samples of a full batch of this rank, unless batches vary
  std::int64_t batch = 0;  ///< index of the current batch among all batches that the rank's loaders have handed out
  /// Non-duplicate samples of the current step per rank, if the duplicates are not all at the end; otherwise empty.
  std::vector<std::int64_t> real_rows = {};
};

/// Whether this step synchronizes gradients, and which loader is being read. One per rank.
///
/// Loaders register for the duration of an iteration. The innermost one counts, so that an evaluation loop inside a
/// training loop does not affect the training loop. Thread rule: the rank's thread only.
/// Source: accelerate/state.py, GradientState.
class GradientState {
 public:
  bool sync_gradients = true;
  /// Samples of all accumulation windows so far, over all ranks, without duplicates. Counted only if a schedule uses
  /// it.
  std::int64_t num_samples = 0;
  std::int64_t num_batches = 0;  ///< number of batches that the rank's loaders have handed out
  GradientAccumulationPlugin plugin;

  [[nodiscard]] bool in_dataloader() const { return !active_.empty(); }
  [[nodiscard]] bool end_of_dataloader() const { return in_dataloader() && active_.back()->end_of_dataloader; }
  [[nodiscard]] std::int64_t remainder() const { return in_dataloader() ? active_.back()->remainder : -1; }
  [[nodiscard]] bool fills_up() const { return !in_dataloader() || active_.back()->fills_up; }
  [[nodiscard]] std::optional<std::int64_t> num_rows() const {
    return in_dataloader() ? active_.back()->num_rows : std::nullopt;
  }

  /// Samples of a full batch of the active loader on this rank; nullopt if batches vary, or without one.
  [[nodiscard]] std::optional<std::int64_t> batch_size() const {
    return in_dataloader() ? active_.back()->batch_size : std::nullopt;
  }

  /// Index of the last batch that the active loader has handed out.
  [[nodiscard]] std::optional<std::int64_t> batch() const {
    return in_dataloader() ? std::optional(active_.back()->batch) : std::nullopt;
  }

  [[nodiscard]] std::vector<std::int64_t> real_rows() const {
    return in_dataloader() ? active_.back()->real_rows : std::vector<std::int64_t>();
  }

  void add(const ActiveLoader* loader) { active_.push_back(loader); }
  void remove(const ActiveLoader* loader) { std::erase(active_, loader); }

 private:
  std::vector<const ActiveLoader*> active_;
};

}  // namespace accel
