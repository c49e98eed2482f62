#pragma once

#include <cstddef>
#include <set>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/named_tensors.hpp"

/// A model whose layers the ranks of a pipeline share out. Norms of gradients and checkpoints read it, so that both are
/// those of the complete model.
///
///     if (const auto* stages = layouts.stages()) complete = stages->gather_on_first(own);
///
/// Thread rule: the rank's thread.
namespace accel {

class ModelStages {
 public:
  /// A parameter or buffer of the complete model.
  struct Entry {
    std::string name = {};
    std::string first_name = {};  ///< of the same tensor: tied weights have several names
    bool is_parameter = true;
    std::vector<int> ranks = {};  ///< that have it under any name, in the order of their stages; the first one counts
  };
  Group group = {};                         ///< the ranks of the pipeline
  std::vector<Entry> entries = {};          ///< in the order of the layers
  std::set<std::string> divided_axes = {};  ///< over which any layer is divided, such as "tp"

  /// Null for a name that the complete model lacks.
  [[nodiscard]] const Entry* find(const std::string& name) const;
  /// The tensors of all stages, on the CPU of the world's first rank, in the order of the complete model; none on the
  /// others. `own`: what this rank has. Collective.
  [[nodiscard]] NamedTensors gather_on_first(const NamedTensors& own) const;
  /// The bytes of each rank of its pipeline on the world's first rank; none on the others. Collective.
  [[nodiscard]] std::vector<std::string> gather_bytes_on_first(const std::string& bytes) const;

 private:
  [[nodiscard]] bool has_first_rank() const;
};

/// Base of modules that hold the stages of one rank, under the names of the complete model.
class StagedModule {
 public:
  virtual ~StagedModule() = default;
  [[nodiscard]] virtual const ModelStages& stages() const = 0;
};

}  // namespace accel
