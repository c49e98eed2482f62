#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

/// Named tensors in a significant order, that of the model's state dict.
///
///     const auto [tensors, same_as] = accel::deduplicate_shared({{"embedding", weight}, {"head", weight}});
///     // tensors is {{"embedding", weight}}, same_as is {{"head", "embedding"}}
///
/// Thread rule: pure functions.
namespace accel {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

struct DeduplicatedTensors {
  NamedTensors tensors = {};
  std::map<std::string, std::string> same_as = {};  ///< maps each omitted name to the name that holds its elements
};

/// Keeps the first of all tensors that view the same elements of one storage. Accelerate omits every tensor whose
/// storage occurred before, even if it views other elements; this function keeps those.
/// Source: accelerate/utils/other.py, clean_state_dict_for_safetensors.
DeduplicatedTensors deduplicate_shared(const NamedTensors& tensors);

/// Removes repeated tensors and keeps the first occurrence of each. LibTorch's `parameters()` returns a parameter once
/// per module that shares it; Python's returns it once.
std::vector<at::Tensor> unique_tensors(std::vector<at::Tensor> tensors);
NamedTensors unique_tensors(NamedTensors tensors);

/// Returns the tensor as contiguous CPU memory without lazy conjugation or negation. Copies only if necessary.
at::Tensor contiguous_on_cpu(const at::Tensor& tensor);

/// Returns the bytes of a contiguous CPU tensor. Throws InternalError for any other tensor.
std::string_view bytes_of(const at::Tensor& tensor);

}  // namespace accel
