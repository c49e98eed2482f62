#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "reference/tree/tree.hpp"

/// Devices and shapes of the tensors of a tree.
///
///     auto batch = accel::send_to_device(loaded, accelerator.device(), {.non_blocking = true});
///     accel::find_device(batch);  // that of its first tensor
///
/// Thread rule: pure functions. Source: accelerate/utils/operations.py.
namespace accel {

struct SendToDeviceOptions {
  bool non_blocking = false;                ///< has an effect on copies from pinned memory
  std::vector<std::string> skip_keys = {};  ///< entries of maps that stay where they are
};

/// Returns the tree with its tensors on `device`; those that are there already are shared.
template <Tree T>
std::remove_cvref_t<T> send_to_device(const T& tree, c10::Device device, const SendToDeviceOptions& options = {}) {
  const auto send = [&](const auto& part) { return send_to_device(part, device, options); };
  if constexpr (TensorLeaf<T>) {
    return tree.to(device, options.non_blocking);
  } else if constexpr (MapTree<T>) {
    auto sent = tree;
    for (auto& [key, part] : sent) {
      const bool stays = std::find(options.skip_keys.begin(), options.skip_keys.end(), key) != options.skip_keys.end();
      if (!stays) part = send(part);
    }
    return sent;
  } else if constexpr (OptionalTree<T>) {
    return tree ? std::remove_cvref_t<T>(send(*tree)) : std::nullopt;
  } else if constexpr (TupleTree<T>) {
    return std::apply([&](const auto&... parts) { return std::remove_cvref_t<T>(send(parts)...); }, tree);
  } else if constexpr (SequenceTree<T>) {
    auto sent = tree;
    std::transform(tree.begin(), tree.end(), sent.begin(), send);
    return sent;
  } else {
    return map_tensors(tree, [&](const at::Tensor& tensor) { return tensor.to(device, options.non_blocking); });
  }
}

/// Returns the tree with meta tensors, which have shapes and dtypes but no data.
template <Tree T>
std::remove_cvref_t<T> get_data_structure(const T& tree) {
  return map_tensors(tree, [](const at::Tensor& tensor) { return tensor.detach().to(at::kMeta); });
}

/// Returns the tree of `structure` (see get_data_structure) with uninitialized tensors on the CPU.
template <Tree T>
std::remove_cvref_t<T> initialize_tensors(const T& structure) {
  return map_tensors(structure, [](const at::Tensor& tensor) {
    return tensor.new_empty(tensor.sizes(), tensor.options().device(at::kCPU));
  });
}

/// The device of the first tensor; nullopt for a tree without tensors.
template <Tree T>
std::optional<c10::Device> find_device(const T& tree) {
  const auto tensors = tensors_of(tree);
  return tensors.empty() ? std::nullopt : std::optional(tensors.front().device());
}

}  // namespace accel
