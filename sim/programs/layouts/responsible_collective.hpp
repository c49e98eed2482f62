#pragma once

#include <string>
#include <vector>

#include "sim/programs/comparison/recorded_run.hpp"
#include "sim/programs/layouts/layout_parts.hpp"

/// Finds the collective that explains a wrong tensor of a run on a mesh.
///
///     const auto [called, missing, symptom] = responsible_collective(mesh, parts, key, /*rank=*/1, cause);
///
/// All tensors that a rank computed before the wrong one are right. So the suspects are the collectives since then, or
/// since the first tensor inside the module. If none of them is over the group that a divided weight requires, that
/// collective is missing. Thread rule: pure functions.
namespace accel::programs {

/// Why a tensor is wrong, as far as its values show.
struct Cause {
  std::string text = {};
  std::vector<std::string> groups = {};  ///< of the mesh, over one of which something is wrong; empty: unknown
  bool is_missing = false;               ///< the values are those before a reduction over the group
};

struct ResponsibleCollective {
  std::string called = {};   ///< "reduce_scatter #4 of group tp (net.cpp:17)"; "" if none is responsible
  std::string missing = {};  ///< "an all-reduce over tp after the output of module fc"; "" if none is missing
  std::string symptom = {};  ///< what the values are without the missing one
};

ResponsibleCollective responsible_collective(const RecordedRun& mesh, const LayoutParts& parts,
                                             const ObservationKey& key, int rank, const Cause& cause);

}  // namespace accel::programs
