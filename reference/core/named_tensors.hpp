#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Tensors by name, in an order that means something: that of a model's state dict.
///
///     const auto [tensors, same_as] = accel::without_shared({{"embedding", weight}, {"head", weight}});
///     // tensors is {{"embedding", weight}}, same_as is {{"head", "embedding"}}
///
/// Thread rule: pure functions.
namespace accel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct WithoutShared {
  NamedTensors tensors = {};
  std::map<std::string, std::string> same_as = {};  ///< a name that was left out, and the one that has its elements
};

/// Of tensors that see the same elements of one storage, the first. Accelerate leaves out every tensor whose storage
/// came before, other elements or none; those are kept here. Source: accelerate/utils/other.py,
/// clean_state_dict_for_safetensors.
WithoutShared without_shared(const NamedTensors& tensors);

/// Each tensor at its first place. LibTorch's `parameters()` gives one that several modules share as often as there are
/// modules, Python's once.
std::vector<at::Tensor> each_once(std::vector<at::Tensor> tensors);
NamedTensors each_once(NamedTensors tensors);

/// Dense, row by row, in this memory, with nothing left to compute (a conjugate, a sign): a copy where it is not that
/// already.
at::Tensor dense_on_cpu(const at::Tensor& tensor);

/// Its elements, which must be dense and in this memory.
std::string_view bytes_of(const at::Tensor& tensor);

}  // namespace accel
