#pragma once

#include <optional>

#include "reference/comm/group.hpp"
#include "reference/state/seeded_random.hpp"

namespace accel::parallel {

/// Gives each rank of a group a separate random stream while it lives, for dropout on values of which each rank has a
/// part. Outside, ranks of one tensor-parallel group draw equal numbers.
///
///     { const CutRandom random(group); hidden = dropout(hidden); }
///
/// The seed is one number drawn from the rank's default CPU generator, mixed with the rank, so that a checkpoint of
/// that generator restores the stream. On a GPU the device's generator has that seed too, and continues afterwards as
/// before. In a group of one rank it does nothing. Thread rule: the rank's thread.
class CutRandom {
 public:
  explicit CutRandom(const Group& group);

 private:
  std::optional<SeededRandom> random_;
};

}  // namespace accel::parallel
