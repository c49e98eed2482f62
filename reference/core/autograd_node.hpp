#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/function.h>

#include <concepts>
#include <memory>
#include <utility>

namespace accel {

/// Makes an autograd node as the LibTorch in use holds it: by std::shared_ptr, whose deleter takes apart long graphs
/// without recursion, or in later releases by c10::intrusive_ptr.
template <std::derived_from<torch::autograd::Node> T, typename... Args>
auto make_node(Args&&... args) {
  using Pointer = decltype(torch::autograd::Edge::function);
  if constexpr (std::same_as<Pointer, std::shared_ptr<torch::autograd::Node>>)
    return std::shared_ptr<T>(new T(std::forward<Args>(args)...), [](T* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
}

}  // namespace accel
