#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "reference/checkpoint/weights_files.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/tree/value.hpp"

namespace torch::nn {
class Module;
}

namespace accel::checkpoint {

/// Returns parameters and buffers with the names and in the order of Python's `state_dict`: a module's own first, then
/// those of its children.
[[nodiscard]] NamedTensors state_dict_of(const torch::nn::Module& module);

/// The same as a Value: a dict of tensors, which share the module's memory.
[[nodiscard]] Value value_of(const torch::nn::Module& module);
/// Copies the tensors of such a dict into the module. Throws CheckpointError that lists all tensors that are missing,
/// unknown or of other sizes, and leaves the module unchanged then.
void load_value(torch::nn::Module& module, const Value& state);

/// Pairs each tensor of `state` with the saved tensor to load into it, once. A tensor with several names may be saved
/// under any of them. Throws CheckpointError, beginning with `what`, that lists all tensors with other sizes and, if
/// `strict`, all that are missing on either side.
std::vector<std::pair<at::Tensor, StoredWeight>> matched(const std::string& what, const NamedTensors& state,
                                                         const std::map<std::string, StoredWeight>& weights,
                                                         bool strict);

}  // namespace accel::checkpoint
