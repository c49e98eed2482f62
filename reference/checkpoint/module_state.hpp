#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace accel::checkpoint {

/// Parameters and buffers as Python's `state_dict` orders and names them: a module's own, then its children's.
[[nodiscard]] NamedTensors state_dict_of(const torch::nn::Module& module);

/// Each tensor of `state` once, and what it is to hold. A tensor of several names may be saved under any of them.
/// Throws CheckpointError, which begins with `what`, with all that has other sizes; if `strict`, also all that is
/// missing on either side.
std::vector<std::pair<at::Tensor, StoredWeight>> matched(const std::string& what, const NamedTensors& state,
                                                         const std::map<std::string, StoredWeight>& weights,
                                                         bool strict);

}  // namespace accel::checkpoint
