#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/data/loader_state.hpp"

/// Whether a saved state fits a loader. Thread rule: values.
namespace accel {

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
