#pragma once

#include <torch/csrc/distributed/c10d/comm.hpp>

#include <functional>
#include <memory>

#include "reference/comm/group.hpp"
#include "reference/config/plugins/options.hpp"

/// Communication hooks: what DistributedDataParallel sends for a bucket of gradients instead of the gradients.
///
///     if (auto hook = make_comm_hook(kwargs, group)) reducer.register_comm_hook(std::move(hook));
///
/// Thread rule: the rank's thread; but see Note [Callbacks of a hook]. Source: accelerate/utils/dataclasses.py,
/// register_comm_hook; torch/distributed/algorithms/ddp_comm_hooks.
namespace accel {

/// The average of one bucket, in flight.
struct BucketReduction {
  at::Tensor sent = {};                      ///< summed over the ranks by `work`; without work already the average
  c10::intrusive_ptr<c10d::Work> work = {};  ///< null: nothing to wait for
  std::function<at::Tensor(const at::Tensor& sent)>
      finish;  ///< called after `work`; returns the average, in any floating dtype

  [[nodiscard]] at::Tensor finished() const;
};

class CommHook : public c10d::CommHookInterface {
 public:
  /// Starts the average of the bucket's buffer over the ranks. Collective. May block in collectives of its own.
  virtual BucketReduction reduce(c10d::GradBucket& bucket) = 0;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) final;
  at::Tensor parseHookResult(const c10::IValue& result) final { return result.toTensor(); }
};

/// The mean over the ranks, divided before the sum as torch's hooks do. PowerSGD uses it during warm-up.
BucketReduction reduce_plainly(const Group& group, const at::Tensor& buffer);
/// Starts a sum over the ranks; `tensor` must not be empty.
c10::intrusive_ptr<c10d::Work> sum_over_ranks(const Group& group, const at::Tensor& tensor);

/// Returns the hook that the options select, null for "no". Throws ConfigError with all problems of the options.
std::unique_ptr<CommHook> make_comm_hook(const DistributedDataParallelKwargs& kwargs, const Group& group);

}  // namespace accel
