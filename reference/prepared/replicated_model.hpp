#pragma once

#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/prepared/unsharded_model.hpp"

namespace accel {

/// A model of which every rank has a replica, and whose gradients DDP averages while backward computes them.
///
/// Thread rule: the rank's thread.
class ReplicatedModel final : public UnshardedModel {
 public:
  /// `ddp`: of the module's tensors.
  ReplicatedModel(std::shared_ptr<torch::nn::Module> module, Options options,
                  std::unique_ptr<DistributedDataParallel> ddp, const DistributedDataParallelKwargs& kwargs)
      : UnshardedModel(std::move(module), std::move(options)),
        ddp_(std::move(ddp)),
        has_own_buckets_(!kwargs.gradient_as_bucket_view) {}

  [[nodiscard]] bool sees_outputs() const override { return UnshardedModel::sees_outputs() || ddp_->sees_outputs(); }
  void before_forward() override { ddp_->before_forward(); }
  bool after_forward(std::vector<at::Tensor>& outputs) override { return ddp_->after_forward(outputs); }

  [[nodiscard]] Restore suspend_sync() override;
  [[nodiscard]] Restore sync_next_backward() override;
  [[nodiscard]] DistributedDataParallel* joinable() const override { return ddp_.get(); }
  [[nodiscard]] NamedTensors unreduced() const override { return ddp_->unreduced(); }
  [[nodiscard]] std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const override {
    return ddp_->origin_of(parameter);
  }

  [[nodiscard]] Value sync_state() const override { return ddp_->state_dict(); }
  void load_sync_state(const Value& state) override;

  [[nodiscard]] sharded::MemoryAccount memory_account() override;

 protected:
  [[nodiscard]] const char* reason_to_see_outputs() const override;

 private:
  std::shared_ptr<DistributedDataParallel> ddp_;
  bool has_own_buckets_;  // gradients are no views of the reducer's buckets
};

}  // namespace accel
