#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/tree/value.hpp"

/// The content of a loader's state_dict: the state at the start of the epoch, and how many batches were handed out.
/// Prefetched batches do not count, so the state does not depend on the number of workers or their prefetch factor.
/// Thread rule: values.
namespace accel {

/// The random numbers of persistent workers between two passes.
struct WorkersState {
  std::int64_t base_seed = 0;  ///< from which they were seeded
  std::vector<at::Tensor> generators =
      {};  ///< states, one per worker; empty: as seeded, or on a rank that does not read
};

/// What a state contains of a pass, besides its order.
struct PassRecord {
  struct Reader {
    std::int64_t num_samples = 0;  ///< samples that it read and that were handed out
    at::Tensor generator = {};     ///< its state after these samples; undefined: as seeded
  };
  std::int64_t num_read = 0;   ///< units handed out over all ranks: samples, or batches of a batch sampler
  std::int64_t base_seed = 0;  ///< seed of the workers' generators
  /// States of persistent workers' generators at the start of the pass; empty: as seeded.
  std::vector<at::Tensor> worker_starts = {};
  at::Tensor random_state = {};  ///< state of the default generator when the order was drawn
  /// State of the default generator before this thread read batches that were not handed out yet; may be undefined.
  at::Tensor ahead_state = {};
  std::vector<Reader> readers = {};  ///< one per worker; empty if the rank's thread reads
  std::int64_t next_reader = 0;
  std::int64_t num_left_over = 0;  ///< samples handed out from the rest that the workers left over at their ends
};

/// A pass with its order: what an open pass has, and what its loader keeps if it is loaded or was left.
struct SavedPass {
  Value order = {};  ///< state of the sampler at the start of the pass
  PassRecord record = {};
};

struct LoaderState {
  /// "samples", "batches" (of a batch sampler), "stream" or "shards" (a stream that is read by parts).
  std::string source = {};
  std::optional<std::int64_t> num_samples = {};  ///< of the dataset; nullopt if unknown
  std::int64_t num_shards = 0;                   ///< number of parts of a stream
  std::int64_t num_workers = 0;                  ///< as requested in the options
  std::int64_t num_processes = 1, process_index = 0;
  std::int64_t epoch = 0;
  Value order = {};           ///< state of the sampler at the start of the open pass, or its current state
  at::Tensor generator = {};  ///< current state of DataLoaderOptions::generator; undefined if there is none
  std::optional<PassRecord> pass = {};
  std::optional<WorkersState> workers = {};  ///< between two passes with persistent workers
};

Value to_value(const LoaderState& state);
/// True for the state of a torchdata StatefulDataLoader, whose position has no meaning here.
bool is_torchdata_loader_state(const Value& value);
/// Throws CheckpointError that lists all entries that are missing or have another type.
LoaderState loader_state_of(const Value& value);

// Comparison of a saved state with a loader. Thread rule: values.

/// Properties of the loader with which a state is compared. Readers are the prefetching threads.
struct LoaderComparison {
  LoaderState own = {};  ///< the current state of the loader
  bool reads = true;     ///< this rank reads and needs an order
  bool is_stream = false;
  int num_readers = 0;  ///< on this rank
  /// Number of readers on rank 0, which has the most, so that all ranks agree: with the state's num_workers, and now.
  int readers_then = 0, readers_now = 0;

  [[nodiscard]] bool reads_by_parts() const { return is_stream && num_readers > 1; }
  [[nodiscard]] bool has_ranks_of(const LoaderState& state) const { return state.num_processes == own.num_processes; }
};

/// Returns all reasons why the loader cannot resume at `state`.
[[nodiscard]] std::vector<std::string> problems_of(const LoaderState& state, const LoaderComparison& fit);
/// Moves the position back by `num_steps` steps, each of which counts as `units_per_step` units. The place of
/// individual readers is lost, as with another number of ranks. Returns a problem, or "".
[[nodiscard]] std::string step_back(LoaderState& state, std::int64_t num_steps, std::int64_t units_per_step);
/// Returns the pass that the loader resumes from a matching state; nullopt: it starts an epoch. With another world size
/// the samples are divided anew, and only the number of units that all ranks have read is kept.
[[nodiscard]] std::optional<SavedPass> resumed_pass(const LoaderComparison& fit, const LoaderState& state);

}  // namespace accel
