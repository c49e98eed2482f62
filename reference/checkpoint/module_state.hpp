#pragma once

#include "reference/core/named_tensors.hpp"

namespace torch::nn {
class Module;
}

namespace accel::checkpoint {

/// Parameters and buffers as Python's `state_dict` orders and names them: a module's own, then its children's.
[[nodiscard]] NamedTensors state_dict_of(const torch::nn::Module& module);

}  // namespace accel::checkpoint
