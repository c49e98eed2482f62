#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "reference/core/value.hpp"

/// What a loader's state_dict holds: the state at the start of the epoch, and how far its batches have been handed out.
/// What was read ahead does not count, so the number of workers and their prefetch do not matter.
/// Thread rule: values.
namespace accel {

/// An epoch that has been begun.
struct PassState {
  struct Reader {
    std::int64_t num_samples = 0;  ///< of what it has read, handed out
    at::Tensor generator = {};     ///< its state behind them; undefined: as seeded
  };
  std::int64_t num_read = 0;     ///< units that all ranks have been handed: samples, or batches of a batch sampler
  std::int64_t base_seed = 0;    ///< of the workers' generators
  at::Tensor random_state = {};  ///< of the default generator, when the order was drawn
  at::Tensor ahead_state =
      {};  ///< of the default generator, before this thread read what is not handed out; may be undefined
  std::vector<Reader> readers = {};  ///< one per worker; none where the rank's thread reads
  std::int64_t next_reader = 0;
  std::int64_t num_left_over = 0;  ///< samples handed out of what the workers' ends had left over
};

/// A place inside an epoch.
struct BegunEpoch {
  Value order = {};  ///< of the sampler, at the start of the epoch
  PassState pass = {};
};

struct LoaderState {
  std::string source =
      {};  ///< "samples", "batches" (of a batch sampler), "stream" or "shards" (a stream read by its parts)
  std::optional<std::int64_t> num_samples = {};  ///< of the dataset; nothing if it does not tell
  std::int64_t num_shards = 0;                   ///< of a stream that has parts
  std::int64_t num_workers = 0;                  ///< asked for
  std::int64_t num_processes = 1, process_index = 0;
  std::int64_t epoch = 0;
  Value order = {};           ///< of the sampler: at the start of the open pass, else as it is
  at::Tensor generator = {};  ///< of DataLoaderOptions, as it is; undefined if there is none
  std::optional<PassState> pass = {};
};

Value to_value(const LoaderState& state);
/// Of a StatefulDataLoader of torchdata, whose places mean nothing here.
bool is_pythons_loader_state(const Value& value);
/// Throws CheckpointError with all that is missing or of another type.
LoaderState loader_state_of(const Value& value);

// Whether a saved state fits a loader. Thread rule: values.

/// What a state is compared with. Readers are the threads that read ahead.
struct LoaderFit {
  LoaderState own = {};  ///< the loader's state now
  bool reads = true;     ///< this rank reads, and needs an order
  bool is_stream = false;
  int num_readers = 0;  ///< of this rank
  /// Of rank 0, which has as many as any, so that all ranks find the same: with the state's num_workers, and now.
  int readers_then = 0, readers_now = 0;

  [[nodiscard]] bool reads_by_parts() const { return is_stream && num_readers > 1; }
  [[nodiscard]] bool has_ranks_of(const LoaderState& state) const { return state.num_processes == own.num_processes; }
};

/// All reasons for which the loader cannot continue at `state`.
[[nodiscard]] std::vector<std::string> problems_of(const LoaderState& state, const LoaderFit& fit);
/// Where the loader resumes from a state that fits; nothing: at the start of an epoch. Other ranks than those of the
/// state share out its samples, so that only the count of what all have read is kept.
[[nodiscard]] std::optional<BegunEpoch> place_for(const LoaderFit& fit, const LoaderState& state);

}  // namespace accel
