#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <functional>
#include <memory>

#include "reference/comm/group.hpp"
#include "reference/config/options.hpp"

/// What DistributedDataParallel sends of a bucket of gradients, in place of the gradients themselves.
///
///     if (auto hook = make_comm_hook(kwargs, group)) reducer.register_comm_hook(std::move(hook));
///
/// Thread rule: the rank's thread; but see Note [Callbacks of a hook].
/// Source: accelerate/utils/dataclasses.py, register_comm_hook; torch/distributed/algorithms/ddp_comm_hooks.
namespace accel {

/// A bucket's average under way.
struct BucketReduction {
  at::Tensor sent = {};                      ///< what is summed over the ranks, or, without work, the average
  c10::intrusive_ptr<c10d::Work> work = {};  ///< null: nothing to wait for
  std::function<at::Tensor(const at::Tensor& sent)>
      finish;  ///< after the work; gives the average, of any floating dtype

  [[nodiscard]] at::Tensor finished() const;
};

class CommHook : public c10d::CommHookInterface {
 public:
  /// Begins the average of the bucket's buffer over the ranks. Collective. It may wait for collectives of its own.
  virtual BucketReduction reduce(c10d::GradBucket& bucket) = 0;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) final;
  at::Tensor parseHookResult(const c10::IValue& result) final { return result.toTensor(); }
};

/// The mean over the ranks: divided first, as torch's hooks do. It is what PowerSGD does in its first steps.
BucketReduction reduce_plainly(const Group& group, const at::Tensor& buffer);
/// A sum under way; called for tensors that are not empty.
c10::intrusive_ptr<c10d::Work> sum_over_ranks(const Group& group, const at::Tensor& tensor);

/// The hook that the options ask for, null for "no". Throws ConfigError with all problems of the options.
std::unique_ptr<CommHook> make_comm_hook(const DistributedDataParallelKwargs& kwargs, const Group& group);

}  // namespace accel
