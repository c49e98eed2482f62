#pragma once

#include <string>
#include <vector>

#include "reference/mesh/mesh.hpp"
#include "sim/programs/comparison/recording.hpp"

/// Layouts of a mesh, and what is found where one computes something else than one rank.
///
///     for (const auto& layout : all_layouts(8)) std::cout << name_of(layout) << '\n';
///
/// Thread rule: values and pure functions.
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

/// Returns a sentence such as "step 0: the output of module fc on rank 1 is wrong by 0.5: a missing reduction over tp".
std::string describe(const Disagreement& disagreement);

struct LayoutAxes {
  bool shards = false;     ///< dp_shard
  bool pipelines = false;  ///< pp
};
/// All meshes of `num_ranks` ranks that use dp_replicate, cp, sp, tp, ep and those of `axes`, in lexicographic order.
std::vector<ParallelismConfig> all_layouts(int num_ranks, LayoutAxes axes = {});
/// "dp_replicate 2 x tp 4"; "one rank" for a mesh of one.
std::string name_of(const ParallelismConfig& layout);

}  // namespace accel::programs
