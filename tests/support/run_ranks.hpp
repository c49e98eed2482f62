#pragma once

#include <functional>
#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"

/// Ranks for tests: the same body on simulated ranks, and on real Gloo with a thread per rank.
///
///     run_ranks(Backend::kSim, 4, [](RankContext& rank) { ... });
///
/// Keeps the errors of all ranks: throws a RunError (sim) or an Error (Gloo) with one line for each.
namespace accel::testing {

/// kGlooThreads goes over shared memory, unless ACCEL_GLOO_TRANSPORT says otherwise; the last two go one way whatever
/// it says.
enum class Backend { kSim, kGlooThreads, kGlooTcpThreads, kGlooSharedMemoryThreads };

std::string name_of(Backend backend);

void run_ranks(Backend backend, int num_ranks, const std::function<void(RankContext&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// As run_ranks, and returns what each rank's body returned.
template <typename F>
auto collect_ranks(Backend backend, int num_ranks, F&& body) {
  std::vector<decltype(body(std::declval<RankContext&>()))> results(num_ranks);
  run_ranks(backend, num_ranks, [&](RankContext& rank) { results[rank.rank] = body(rank); });
  return results;
}

}  // namespace accel::testing
