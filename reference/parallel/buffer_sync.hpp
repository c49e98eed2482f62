#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <vector>

#include "reference/comm/group.hpp"

namespace accel {

/// Copies the tensors of rank `root` to all ranks of the group, in buckets as Python's DDP does. Collective.
void broadcast_tensors(const Group& group, const std::vector<at::Tensor>& tensors, int root);

/// The buffers of a replicated model, which every forward pass takes from one rank.
///
///     buffers.receive(group, {.root = 0});
///     auto loss = net(x).mean();
///     buffers.forward_ended(/*has_graph=*/true);
///
/// A graph whose backward pass has not run may have saved a buffer. Autograd would then reject the values that the next
/// forward pass receives, even equal ones. So they are written without autograd's notice where no backward pass reads
/// them, which are the statistics of batch norms; others are written only if they differ on any rank.
///
/// Thread rule: the rank's thread. `gradient_arrived` may run on a thread of a backward pass for which that waits.
class BufferSync {
 public:
  struct Buffers {
    std::vector<at::Tensor> tensors = {};
    std::vector<std::string> names = {};      ///< one per tensor
    std::vector<at::Tensor> statistics = {};  ///< those that no backward pass reads
  };
  explicit BufferSync(Buffers buffers) : buffers_(std::move(buffers)) {}

  [[nodiscard]] const std::vector<at::Tensor>& tensors() const { return buffers_.tensors; }
  [[nodiscard]] bool empty() const { return buffers_.tensors.empty(); }

  struct ReceiveOptions {
    int root = 0;
    bool is_joined = false;  ///< ranks without batches match the calls, so there is only a broadcast
  };
  /// Collective.
  void receive(const Group& group, ReceiveOptions options);
  void forward_ended(bool has_graph) { has_graph_ = has_graph_ || has_graph; }
  void gradient_arrived() { has_graph_ = false; }

  /// Throws StateError if `error`, of a backward pass, is autograd's about a tensor that was changed in place, and
  /// `receive` has changed buffers after a forward pass that has no backward pass yet.
  void explain(const std::exception& error) const;

 private:
  [[nodiscard]] bool is_statistic(const at::Tensor& buffer) const;
  void write_changed(const Group& group, const std::vector<std::size_t>& places,
                     const std::vector<at::Tensor>& received);

  Buffers buffers_;
  bool has_graph_ = false;                 // a forward pass has no backward pass yet
  std::vector<std::string> changed_ = {};  // quoted names, while there was such a graph
};

}  // namespace accel
