#pragma once

#include <optional>
#include <string>
#include <vector>

#include "reference/config/plugins/options.hpp"
#include "sim/programs/comparison/recorded_run.hpp"

/// Compares a run on a mesh with a run of the same program and the same samples on one rank, tensor by tensor.
///
///     const auto disagreement = first_disagreement(RecordedRun(one, 1), RecordedRun(mesh, 8), {.tp_size = 8});
///     if (disagreement) std::cout << describe(*disagreement) << '\n';
///
/// Thread rule: pure functions.
namespace accel::programs {

struct Disagreement {
  ObservationKey what = {};
  int rank = 0;
  std::string cause = {};       ///< likely, as in "the bias is added 2 times"
  std::string collective = {};  ///< the likeliest one: "reduce_scatter #4 of group tp (net.cpp:17)"; "" if none
  std::string missing = {};     ///< instead: "a reduction over tp after the output of module fc"; "" if none
  bool is_absent = false;       ///< the rank has no such tensor: also if its run failed before
  double error = 0;             ///< largest difference of an element, relative to the largest expected element
};

/// Returns the first tensor, in the order in which one rank computes them, that a rank of the mesh holds with other
/// values than its placement requires: the initial parameters; in each step inputs, outputs, the loss, input gradients,
/// the gradient of each parameter and the updated parameters.
///
/// Both runs read the same samples in a step; losses are means over a rank's samples or tokens, so input gradients on
/// the mesh are larger by the number of ranks with other tokens. The tolerance follows the dtype: 1e-9 in float64, 1e-4
/// in float32, 0.05 below.
std::optional<Disagreement> first_disagreement(const RecordedRun& one, const RecordedRun& mesh,
                                               const ParallelismConfig& layout);

/// Returns a sentence such as "step 0: the output of module fc on rank 1 is wrong by 0.5: a missing reduction over tp".
std::string describe(const Disagreement& disagreement);

/// All meshes of `num_ranks` ranks that use dp_replicate, cp, sp, tp, ep and, with `shards`, dp_shard, in lexicographic
/// order.
std::vector<ParallelismConfig> all_layouts(int num_ranks, bool shards = false);
/// "dp_replicate 2 x tp 4"; "one rank" for a mesh of one.
std::string name_of(const ParallelismConfig& layout);

}  // namespace accel::programs
