#pragma once

#include "reference/modules/divided_parameter.hpp"
#include "reference/parallel/distributed_data_parallel.hpp"
#include "reference/prepared/parallel_model.hpp"
#include "reference/prepared/parameter_layouts.hpp"

namespace accel {

/// A model that this rank holds completely and computes without communication: on a single rank, or for evaluation.
///
/// Thread rule: the rank's thread.
class UnshardedModel : public ParallelModel {
 public:
  using ParallelModel::ParallelModel;

  // --- forward ------------------------------------------------------------------------------------------------------
  [[nodiscard]] const char* feature_needing_outputs() const override {
    return options().autocast ? "mixed precision" : nullptr;
  }
  [[nodiscard]] bool communicates_in_forward() const override { return false; }
  void before_forward() override {}
  [[nodiscard]] bool casts_inputs() const override { return options().channels_last; }
  [[nodiscard]] at::Tensor cast_input(const at::Tensor& tensor) const override;
  void explain(const std::exception& error) const override { explain_division(error); }
  void explain_backward(const std::exception&) const override {}
  bool after_forward(std::vector<at::Tensor>&) override { return false; }

  // --- gradient synchronization -------------------------------------------------------------------------------------
  [[nodiscard]] Restore override_sync(Override) override { return {}; }
  [[nodiscard]] bool synchronizes() const override { return false; }
  void begin_micro_batches() override {}
  void end_micro_batches() override {}
  void abandon_micro_batches() noexcept override {}
  [[nodiscard]] DistributedDataParallel* joinable() const override { return nullptr; }
  [[nodiscard]] UnaveragedGradients take_unaveraged() override { return {}; }
  [[nodiscard]] std::optional<GradientOrigin> origin_of(const at::Tensor&) const override { return std::nullopt; }
  [[nodiscard]] Value sync_state() const override { return {}; }
  void load_sync_state(const Value&) override {}
  [[nodiscard]] std::vector<std::int64_t> gradient_sizes(const at::Tensor& parameter,
                                                         const Value& sync_state) const override;
  void load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) override;

  // --- what the parameters show -------------------------------------------------------------------------------------
  void before_step() override;
  void after_step(bool has_stepped) override;
  [[nodiscard]] std::shared_ptr<sharded::MemorySource> make_optimizer_memory() const override { return nullptr; }
  [[nodiscard]] const Group* shard_group() const override { return nullptr; }
  [[nodiscard]] std::vector<at::Tensor> sharded_gradients(const std::vector<at::Tensor>&) const override { return {}; }
  void gather_parameters() override {}
  void release_parameters(const Group&, std::optional<int>) override {}

  // --- state --------------------------------------------------------------------------------------------------------
  [[nodiscard]] Form form() const override { return {}; }
  [[nodiscard]] NamedTensors full_state(std::optional<at::ScalarType> sharded_dtype) override;
  [[nodiscard]] NamedTensors weights() override;
  [[nodiscard]] std::vector<TensorPart> parts() const override { return {}; }
  [[nodiscard]] std::function<void()> prepare_load(const std::string& what,
                                                   const std::map<std::string, StoredWeight>& weights) override;
  [[nodiscard]] sharded::MemoryAccount& memory() override { return activations_; }
  [[nodiscard]] sharded::MemoryAccount memory_account() override;

 private:
  [[nodiscard]] NamedTensors own_weights();  // with this rank's parts of divided layers
  sharded::MemoryAccount activations_;
};

/// A model that every rank replicates. DDP averages its gradients while backward computes them. Experts that are
/// divided over ranks have fewer replicas, so they have a DDP of their own.
///
/// Thread rule: the rank's thread.
class ReplicatedModel final : public UnshardedModel {
 public:
  /// `ddp` must wrap the tensors of `module` except the experts, which `experts` wraps; null without them.
  ReplicatedModel(std::shared_ptr<torch::nn::Module> module, ParameterLayouts layouts, Options options,
                  std::unique_ptr<DistributedDataParallel> ddp, std::unique_ptr<DistributedDataParallel> experts,
                  bool has_own_buckets)
      : UnshardedModel(std::move(module), std::move(layouts), std::move(options)),
        ddp_(std::move(ddp)),
        experts_(std::move(experts)),
        has_own_buckets_(has_own_buckets) {}

  [[nodiscard]] const char* feature_needing_outputs() const override;
  void retire() override;
  void before_forward() override;
  bool after_forward(std::vector<at::Tensor>& outputs) override;
  void explain_backward(const std::exception& error) const override { ddp_->explain_backward(error); }

  [[nodiscard]] Restore override_sync(Override override) override;
  [[nodiscard]] bool synchronizes() const override { return ddp_->sync_flags.backward; }
  void begin_micro_batches() override { end_suspension_ = override_sync(Override::kSuspended); }
  void end_micro_batches() override;
  void abandon_micro_batches() noexcept override { std::exchange(end_suspension_, {})(); }
  [[nodiscard]] DistributedDataParallel* joinable() const override;
  [[nodiscard]] UnaveragedGradients take_unaveraged() override;
  void accept_gradients() override;
  [[nodiscard]] std::optional<GradientOrigin> origin_of(const at::Tensor& parameter) const override;

  [[nodiscard]] Value sync_state() const override;
  void load_sync_state(const Value& state) override;
  void load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) override;

  [[nodiscard]] sharded::MemoryAccount memory_account() override;

 private:
  std::shared_ptr<DistributedDataParallel> ddp_, experts_;
  Restore end_suspension_;  // between begin_micro_batches and its end
  bool has_own_buckets_;    // gradients are separate tensors, not views of the reducer's buckets
};

}  // namespace accel
