#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/faults/fault.hpp"

/// All random choices of faults, drawn from the seed by pure functions. A draw is identified by its fault's stream, by
/// what it decides, by the rank and by the number of the hit, so neither other faults nor the schedule change it.
///
///     const auto plan = plan_faults(read_faults("faults.yaml", num_ranks), num_ranks);
///     if (strikes(plan[0], rank, num_messages++)) delay(*plan[0].seconds);
///
/// Thread rule: pure.
namespace accel::sim {

/// Philox4x32-10: random bits as a pure function of a counter and a key, so no draw depends on an earlier one.
/// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
constexpr std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                  std::array<std::uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const auto left = std::uint64_t{0xD2511F53} * counter[0];
    const auto right = std::uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<std::uint32_t>(right >> 32) ^ counter[1] ^ key[0], static_cast<std::uint32_t>(right),
               static_cast<std::uint32_t>(left >> 32) ^ counter[3] ^ key[1], static_cast<std::uint32_t>(left)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

/// Fills in the parameters that the file left open with the kind's default or a draw: any rank; any bit; a step or a
/// collective of 1..8; a link of the ring, from a rank to the one below, which every all-reduce uses. The `rank` of a
/// kind that strikes every rank, `file`, `bytes` (see drawn_bytes) and the `seconds` of a store that is away stay
/// absent. Does not change faults that are already planned. Throws ArgumentError if a link or a partition has fewer
/// than two ranks.
std::vector<Fault> plan_faults(std::vector<Fault> faults, int num_ranks);

/// Returns whether the fault strikes at the `hit`-th opportunity of `rank`; true if its kind has no probability.
bool strikes(const Fault& fault, int rank, std::uint64_t hit);

/// Returns the delay of `rank` at its `hit`-th step: uniform between 0 and twice the fault's seconds.
double jitter_seconds(const Fault& fault, int rank, std::uint64_t hit);

/// Returns how many bytes (0..size) of a write reach the disk before the process dies, if the fault does not say.
std::int64_t drawn_bytes(const Fault& fault, std::int64_t size);

}  // namespace accel::sim
