#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace accel::programs {

struct EquivalenceOptions {
  std::vector<std::string> laws = {};  ///< default: all
  int cases = 100;                     ///< per law
  std::uint64_t seed = 1;
  std::optional<std::string> only_case = {};  ///< runs this case alone, as JSON
  std::optional<std::string> out = {};        ///< folder for one record per law, see equivalence_record.hpp
};

/// Compares simulated ranks with the real ranks of this job: every rank of the job calls it, under any launcher. Rank 0
/// draws the cases, simulates them too, reduces the first case that differs, and prints one line per law.
///
/// Gloo jobs run cases on 1 rank to all of the job's ranks, through one group per number of ranks. On NCCL every case
/// runs on all ranks. Returns whether no case differed, the same on every rank. Throws ConfigError for a job of one
/// rank, and CommError if a real rank is lost.
bool run_equivalence(const EquivalenceOptions& options);

}  // namespace accel::programs
