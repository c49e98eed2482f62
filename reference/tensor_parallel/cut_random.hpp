#pragma once

#include <optional>

#include "reference/comm/group.hpp"
#include "reference/core/random.hpp"

namespace accel::parallel {

/// Gives each rank of a group a random stream of its own while it lives, for dropout on values of which each rank has a
/// part. Outside, ranks of one tensor-parallel group draw equal numbers.
///
///     { const CutRandom random(group); hidden = dropout(hidden); }
///
/// The seed is one number drawn from the rank's default generator, mixed with the rank, so that a checkpoint of that
/// generator restores the stream. In a group of one rank it does nothing. Thread rule: the rank's thread.
class CutRandom {
 public:
  explicit CutRandom(const Group& group);

 private:
  std::optional<GeneratorScope> scope_;
};

}  // namespace accel::parallel
