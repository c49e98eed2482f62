#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "reference/state/rank_context.hpp"

/// Runs the same body on simulated ranks, or on real Gloo with one thread per rank.
///
/// Example: `run_ranks(Backend::kSim, 4, [](RankContext& rank) { ... });`
///
/// Keeps the errors of all ranks: throws a RunError (sim) or an Error (Gloo) with one line per failed rank.
namespace accel::testing {

/// kGlooThreads uses shared memory unless ACCEL_GLOO_TRANSPORT selects another transport. The next two always use
/// theirs. The last one uses shared memory and records no calls, unlike the others.
enum class Backend { kSim, kGlooThreads, kGlooTcpThreads, kGlooSharedMemoryThreads, kGlooUnrecordedThreads };

std::string name_of(Backend backend);

void run_ranks(Backend backend, int num_ranks, const std::function<void(RankContext&)>& body,
               std::chrono::milliseconds timeout = std::chrono::seconds(60));

/// Calls run_ranks and returns the results of all ranks' bodies.
template <typename F>
auto collect_ranks(Backend backend, int num_ranks, F&& body) {
  std::vector<decltype(body(std::declval<RankContext&>()))> results(num_ranks);
  run_ranks(backend, num_ranks, [&](RankContext& rank) { results[rank.rank] = body(rank); });
  return results;
}

}  // namespace accel::testing
