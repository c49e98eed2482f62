#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "sim/faults/fault.hpp"

/// Everything random about faults, drawn from the seed by pure functions. A draw is named by its fault's stream, by
/// what it decides, by the rank and by the number of the hit; nothing shifts it, not the faults beside it, not the
/// schedule.
///
///     const auto plan = plan_faults(read_faults("faults.yaml", num_ranks), num_ranks);
///     if (strikes(plan[0], rank, num_messages++)) delay(*plan[0].seconds);
///
/// Thread rule: pure.
namespace accel::sim {

// Philox4x32-10: random bits as a pure function of a counter and a key, so that a draw depends on no draw before it.
// Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
//
// Thread rule: pure.

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

/// Gives every fault all that its kind takes: what the file left open is the kind's default, or drawn. A rank, a bit:
/// any; a step or a collective: 1..8; a link: one of the ring, from a rank to the one below, which every all-reduce
/// uses. Planned faults stay as they are. Throws ArgumentError if a link or a partition has fewer than two ranks.
std::vector<Fault> plan_faults(std::vector<Fault> faults, int num_ranks);

/// Whether the fault happens at the `hit`-th chance that `rank` gives it; true where its kind has no probability.
bool strikes(const Fault& fault, int rank, std::uint64_t hit);

/// How long `rank` is held up at its `hit`-th step: evenly between 0 and twice the fault's seconds.
double jitter_seconds(const Fault& fault, int rank, std::uint64_t hit);

/// How many bytes of a write of `size` reach the disk before the process dies, where the fault does not say: 0..size.
std::int64_t drawn_bytes(const Fault& fault, std::int64_t size);

}  // namespace accel::sim
