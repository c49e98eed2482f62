#pragma once

#include <optional>
#include <string>

#include "sim/programs/comparison/recording.hpp"

namespace accel::programs {

/// An observation of a rank that is not the one of rank 0.
struct Parting {
  const Observation* seen = nullptr;  ///< of the first rank that differs
  int rank = 0;
  int count = 0;  ///< of this kind and name before it, on the rank
};

/// The first observation of a kind that is not the same on a rank as on rank 0, in the order of the program.
std::optional<Parting> first_parting(const Recording& recording, const std::string& kind);

/// Where the ranks' parameters differ after an update but agree at the end, as by LocalSGD.
std::optional<Parting> passing_difference(const Recording& recording);

}  // namespace accel::programs
