#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "reference/config/options.hpp"

namespace accel {

/// What an iteration over a prepared loader tells the rank.
struct ActiveLoader {
  bool end_of_dataloader = false;  ///< true from before the last batch is handed out
  /// Samples of the last step that are no duplicates, over all ranks; 0: all of them; -1: unknown or drop_last.
  std::int64_t remainder = -1;
  bool fills_up = true;  ///< the last step holds as many samples on every rank, duplicates where there are not enough
  std::optional<std::int64_t> num_rows = {};  ///< samples of this rank's current batch, duplicates included
  std::int64_t batch = 0;  ///< number of the current batch among all that the rank's loaders have handed out
  /// Samples of the current step that are no duplicates, per rank, where these do not all come last; else empty.
  std::vector<std::int64_t> real_rows = {};
};

/// Whether this step synchronises gradients, and which loader is being read. One per rank.
///
/// Loaders register for the time of an iteration; the innermost one counts, so that an evaluation loop inside a
/// training loop leaves no trace. Thread rule: the rank's thread only.
/// Source: accelerate/state.py, GradientState.
class GradientState {
 public:
  bool sync_gradients = true;
  /// Samples of all accumulation windows so far, over all ranks, without duplicates; counted if a schedule asks for it.
  std::int64_t num_samples = 0;
  std::int64_t num_batches = 0;  ///< that the rank's loaders have handed out
  GradientAccumulationPlugin plugin;

  [[nodiscard]] bool in_dataloader() const { return !active_.empty(); }
  [[nodiscard]] bool end_of_dataloader() const { return in_dataloader() && active_.back()->end_of_dataloader; }
  [[nodiscard]] std::int64_t remainder() const { return in_dataloader() ? active_.back()->remainder : -1; }
  [[nodiscard]] bool fills_up() const { return !in_dataloader() || active_.back()->fills_up; }
  [[nodiscard]] std::optional<std::int64_t> num_rows() const {
    return in_dataloader() ? active_.back()->num_rows : std::nullopt;
  }

  /// Of the batch that was handed out last by the loader that is read.
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
