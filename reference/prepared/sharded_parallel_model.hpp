#pragma once

#include "reference/modules/divided_parameter.hpp"
#include "reference/parallel/reduction_record.hpp"
#include "reference/parallel/unaveraged_gradients.hpp"
#include "reference/prepared/parallel_model.hpp"
#include "reference/prepared/parameter_layouts.hpp"
#include "reference/sharded/sharded_model.hpp"

namespace accel {

/// A model whose parameters, gradients and optimizer state are sharded over ranks: FSDP and ZeRO.
///
/// Thread rule: the rank's thread.
class ShardedParallelModel final : public ParallelModel {
 public:
  /// `layouts`: of the module before it was sharded.
  ShardedParallelModel(std::shared_ptr<torch::nn::Module> module, ParameterLayouts layouts, Options options,
                       std::unique_ptr<sharded::ShardedModel> model)
      : ParallelModel(std::move(module), std::move(layouts), std::move(options)), model_(std::move(model)) {
    add_shards(model_->divided_parameters());
  }

  [[nodiscard]] const sharded::ShardedModel& model() const { return *model_; }

  void retire() override {
    ParallelModel::retire();
    model_->dissolve();
  }
  // --- forward ------------------------------------------------------------------------------------------------------
  [[nodiscard]] const char* feature_needing_outputs() const override { return "a sharded model"; }
  [[nodiscard]] bool communicates_in_forward() const override { return true; }
  void before_forward() override { model_->before_forward(); }
  [[nodiscard]] bool casts_inputs() const override { return model_->casts_inputs(); }
  [[nodiscard]] at::Tensor cast_input(const at::Tensor& tensor) const override { return model_->cast_input(tensor); }
  void explain(const std::exception& error) const override {
    model_->explain(error);
    explain_division(error);
  }
  void explain_backward(const std::exception&) const override {}
  bool after_forward(std::vector<at::Tensor>& outputs) override;

  // --- gradient synchronization -------------------------------------------------------------------------------------
  [[nodiscard]] Restore override_sync(Override override) override;
  [[nodiscard]] bool synchronizes() const override { return model_->sync_gradients; }
  void begin_micro_batches() override { model_->begin_micro_batches(); }
  void end_micro_batches() override { model_->end_micro_batches(); }
  void abandon_micro_batches() noexcept override {}  // the next forward or step cleans up
  [[nodiscard]] DistributedDataParallel* joinable() const override;
  [[nodiscard]] UnaveragedGradients take_unaveraged() override { return {.written = model_->take_written_gradients()}; }
  [[nodiscard]] std::optional<GradientOrigin> origin_of(const at::Tensor&) const override { return std::nullopt; }
  [[nodiscard]] Value sync_state() const override;
  void load_sync_state(const Value&) override {}
  [[nodiscard]] std::vector<std::int64_t> gradient_sizes(const at::Tensor& parameter,
                                                         const Value& sync_state) const override;
  void load_gradients(const std::map<std::string, at::Tensor>& gradients, const Value& sync_state) override;

  // --- what the parameters show -------------------------------------------------------------------------------------
  void before_step() override { model_->show_shards(); }
  void after_step(bool has_stepped) override {
    if (has_stepped) model_->mark_stepped();
  }
  [[nodiscard]] std::shared_ptr<sharded::MemorySource> make_optimizer_memory() const override;
  [[nodiscard]] const Group* shard_group() const override { return &model_->groups().gathers; }
  [[nodiscard]] std::vector<at::Tensor> sharded_gradients(const std::vector<at::Tensor>& parameters) const override {
    return model_->gradients(parameters);
  }
  void gather_parameters() override { model_->gather_full_parameters(); }
  void release_parameters(const Group& world, std::optional<int> modified_on) override;

  // --- state --------------------------------------------------------------------------------------------------------
  [[nodiscard]] Form form() const override {
    return {.state_dict_type = model_->options().state_dict_type, .has_fsdp_file_names = model_->options().autocasts};
  }
  [[nodiscard]] NamedTensors full_state(std::optional<at::ScalarType> sharded_dtype) override;
  [[nodiscard]] NamedTensors weights() override { return form().is_complete() ? complete_state() : NamedTensors(); }
  [[nodiscard]] std::vector<TensorPart> parts() const override { return model_->sharded_state(); }
  [[nodiscard]] std::function<void()> prepare_load(const std::string& what,
                                                   const std::map<std::string, StoredWeight>& weights) override;
  [[nodiscard]] sharded::MemoryAccount& memory() override { return model_->memory(); }
  [[nodiscard]] sharded::MemoryAccount memory_account() override { return model_->memory(); }

 private:
  [[nodiscard]] Restore set_sync(bool on);
  [[nodiscard]] NamedTensors complete_state();  // on the main process

  std::shared_ptr<sharded::ShardedModel> model_;
};

}  // namespace accel
