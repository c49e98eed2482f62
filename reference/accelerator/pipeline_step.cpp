// A training step of a pipeline, between the schedule's executor and the gradient pipeline.
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <cmath>
#include <functional>
#include <numeric>

#include "reference/accelerator/metric_rows.hpp"
#include "reference/accelerator/preparation.hpp"
#include "reference/accelerator/training_step.hpp"
#include "reference/core/errors.hpp"
#include "reference/pipeline/pipeline_model.hpp"

namespace accel {
namespace {

using Tensors = std::vector<at::Tensor>;

// Begins the micro-batches of a step, and leaves the model usable if one of them fails.
class MicroBatches {
 public:
  explicit MicroBatches(ParallelModel& model) : model_(&model) { model.begin_micro_batches(); }
  ~MicroBatches() {
    if (model_ != nullptr) model_->abandon_micro_batches();
  }
  MicroBatches(const MicroBatches&) = delete;
  MicroBatches& operator=(const MicroBatches&) = delete;

  void end() { std::exchange(model_, nullptr)->end_micro_batches(); }

 private:
  ParallelModel* model_;
};

// The micro-batches of a batch.
struct CutBatch {
  std::vector<Tensors> inputs, targets;
  std::vector<double> items;  // over how many the loss of each is a mean
  double total = 0;           // of the items
};

void count_items(CutBatch& cut, const PipelineBatch& batch) {
  for (const auto& part : cut.targets)
    cut.items.push_back(batch.num_items ? batch.num_items(part) : static_cast<double>(part.front().size(0)));
  for (const auto items : cut.items)
    check_argument(std::isfinite(items) && items >= 0, "train_pipeline: num_items: expected 0 or more, got {}", items);
  cut.total = std::accumulate(cut.items.begin(), cut.items.end(), 0.0);
  check_argument(cut.total > 0, "train_pipeline: num_items: the batch has 0 items; expected one or more");
}

CutBatch cut_batch(const PipelineBatch& batch, const Tensors& all, int count) {
  const auto parts = cut_into_micro_batches(all, count, "train_pipeline");
  check_argument(
      static_cast<int>(parts.size()) == count,
      "train_pipeline: a batch of {} rows gives {} micro-batches of {} rows; expected {}, so use a multiple of "
      "{} rows, or fewer micro-batches",
      all.front().size(0), parts.size(), parts.empty() ? 0 : parts.front().front().size(0), count, count);
  check_argument(!batch.inputs.empty() && !batch.targets.empty(),
                 "train_pipeline: the batch has {} inputs and {} targets; expected at least one of each",
                 batch.inputs.size(), batch.targets.size());
  CutBatch cut;
  for (const auto& part : parts) {
    const auto middle = part.begin() + static_cast<std::ptrdiff_t>(batch.inputs.size());
    cut.inputs.emplace_back(part.begin(), middle);
    cut.targets.emplace_back(middle, part.end());
  }
  count_items(cut, batch);
  return cut;
}

// A loss of 0 that depends on the outputs.
at::Tensor zero_of(const Tensors& outputs) {
  at::Tensor zero;
  for (const auto& output : outputs) {
    if (output.requires_grad()) zero = zero.defined() ? zero + output.sum() * 0 : output.sum() * 0;
  }
  return zero;
}

// The losses of the micro-batches, each with its share in that of the batch.
class WeightedLosses {
 public:
  WeightedLosses(const PipelineLoss& loss, const CutBatch& batch, at::Tensor factor)
      : loss_(loss), batch_(batch), factor_(std::move(factor)), values_(batch.items.size()) {}

  // On which to call backward: also with the factor of accumulation and of the loss scale.
  at::Tensor operator()(int micro_batch, const Tensors& outputs) {
    Tensors converted;
    for (const auto& output : outputs) converted.push_back(convert_to_fp32(output));
    const auto items = batch_.items[micro_batch];
    // A mean over no items is NaN, and counts nothing.
    const auto loss = items > 0 ? loss_(converted, batch_.targets[micro_batch]) : zero_of(converted);
    check_argument(
        loss.defined() && loss.dim() == 0 && loss.requires_grad(),
        "train_pipeline: the loss of a micro-batch must be a tensor of shape [] that depends on a parameter");
    const auto weighted = loss * (items / batch_.total);
    values_[micro_batch] = weighted.detach();
    return weighted * factor_;
  }

  // Of the batch, on the rank of the last stage; 0 on others.
  [[nodiscard]] at::Tensor sum() const {
    auto sum = values_.front().defined() ? at::zeros_like(values_.front()) : at::zeros({});
    for (const auto& value : values_) sum = value.defined() ? sum + value : sum;
    return sum;
  }

 private:
  const PipelineLoss& loss_;
  const CutBatch& batch_;
  at::Tensor factor_;
  Tensors values_;
};

// As the handle of a prepared model calls it.
Tensors call_prepared(ParallelModel& model, const PipelineModel::Forward& stage, const Tensors& inputs) {
  model.before_forward();
  Tensors values = inputs;
  if (model.casts_inputs()) {
    for (auto& value : values) value = model.cast_input(value);
  }
  std::optional<Autocast> autocast;
  if (model.options().autocast) autocast.emplace(*model.options().autocast);
  auto outputs = stage(values);
  autocast.reset();
  model.after_forward(outputs);
  return outputs;
}

}  // namespace

// What loss weighting, accumulation and the loss scale make of a loss of 1.
at::Tensor TrainingStep::factor_of_loss(double num_items) {
  const auto& state = context_->gradient_state;
  const bool is_exact = settings().loss_weighting == "exact";
  return training().path->scaled_loss(at::ones({}, at::TensorOptions(context_->device)),
                                      is_exact ? std::optional(num_items) : std::nullopt,
                                      {.all = state.num_rows(), .real = num_real_rows(state, data_parallel())});
}

at::Tensor TrainingStep::train_pipeline(const PreparedModel<PipelineModel>& model, const PipelineBatch& batch,
                                        const PipelineLoss& loss, std::source_location where) {
  const CallSite site(where);
  auto* const listener = context_->listener.get();
  const PhaseScope phase(listener, "backward");
  auto& parallel = *model.parallel_model();
  auto& stages = *model.module();
  parallel.check_current("train_pipeline");
  check_batch_size();
  warn_of_models_without_optimizer();
  warn_of_directly_stepped_optimizers();

  auto all = batch.inputs;
  all.insert(all.end(), batch.targets.begin(), batch.targets.end());
  const auto cut = cut_batch(batch, all, stages.num_micro_batches());
  stages.check_same_batch(all);
  if (listener != nullptr && listener->observes_tensors()) listener->before_forward(stages, batch.inputs);

  const bool synchronizes = parallel.synchronizes();
  WeightedLosses losses(loss, cut, factor_of_loss(cut.total));
  MicroBatches micro_batches(parallel);
  (void)stages.step(cut.inputs, std::ref(losses), [&](const PipelineModel::Forward& stage, const Tensors& inputs) {
    return call_prepared(parallel, stage, inputs);
  });
  const auto mean = stages.shared_loss(losses.sum());
  if (listener != nullptr) listener->begin_backward(mean);
  if (synchronizes) stages.add_tied_gradients();
  micro_batches.end();
  if (plugin().steps_in_backward && sync_gradients()) step_in_backward();
  return mean;
}

PreparedModel<PipelineModel> Preparation::prepare_pipeline(std::vector<PipelineLayer> layers,
                                                           const PipelineOptions& options) {
  auto stages = pipeline_model(std::move(layers), mesh(), options);
  stages->predict_only();
  return prepare_model(std::move(stages), {.evaluation_mode = true});
}

}  // namespace accel
