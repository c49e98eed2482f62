#pragma once

#include <torch/nn/module.h>

#include <concepts>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/core/errors.hpp"
#include "reference/modules/call.hpp"
#include "reference/modules/model_stages.hpp"
#include "reference/pipeline/pipeline_options.hpp"
#include "reference/state/device_mesh.hpp"
#include "reference/tree/tree.hpp"

namespace torch::nn {
class Sequential;
}

namespace accel {

/// A part of a model that is not cut: it maps tensors to tensors.
struct PipelineLayer {
  std::string name = {};  ///< for split points and messages
  std::vector<std::pair<std::string, std::shared_ptr<torch::nn::Module>>> modules =
      {};  ///< whose parameters it uses, by their names in the complete model; layers may share a module
  std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)> forward = {};
};

namespace detail {

// Calls a module with up to four tensors, or with all of them as one vector.
template <typename Module>
std::vector<at::Tensor> call_with_tensors(Module& module, const std::vector<at::Tensor>& inputs) {
  using Tensor = const at::Tensor&;
  const auto& in = inputs;
  if constexpr (requires(Tensor a) { module.forward(a); }) {
    if (in.size() == 1) return tensors_of(accel::call(module, in[0]));
  }
  if constexpr (requires(Tensor a) { module.forward(a, a); }) {
    if (in.size() == 2) return tensors_of(accel::call(module, in[0], in[1]));
  }
  if constexpr (requires(Tensor a) { module.forward(a, a, a); }) {
    if (in.size() == 3) return tensors_of(accel::call(module, in[0], in[1], in[2]));
  }
  if constexpr (requires(Tensor a) { module.forward(a, a, a, a); }) {
    if (in.size() == 4) return tensors_of(accel::call(module, in[0], in[1], in[2], in[3]));
  }
  if constexpr (requires { module.forward(in); }) {
    return tensors_of(accel::call(module, in));
  } else {
    throw ArgumentError(
        fmt::format("pipeline: the forward of {} takes another number of tensors than the {} that it got",
                    module.name(), in.size()));
  }
}

}  // namespace detail

/// A layer that is a module. `forward` of the module takes tensors, or one std::vector of them, and returns a tree of
/// tensors, which the next layer gets.
template <typename Module>
PipelineLayer pipeline_layer(std::string name, const std::shared_ptr<Module>& module) {
  return {.name = name, .modules = {{name, module}}, .forward = [module](const std::vector<at::Tensor>& inputs) {
            return detail::call_with_tensors(*module, inputs);
          }};
}
template <typename Contained>
PipelineLayer pipeline_layer(std::string name, const torch::nn::ModuleHolder<Contained>& holder) {
  return pipeline_layer(std::move(name), holder.ptr());
}
/// The elements of a Sequential, each of which takes and returns one tensor.
std::vector<PipelineLayer> pipeline_layers(const torch::nn::Sequential& model);

/// The loss of one micro-batch, from the outputs of the last layer.
class PipelineLoss {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Function = std::function<at::Tensor(const Tensors& outputs, const Tensors& targets)>;
  /// `loss(output, target)`, or `loss(outputs, targets)` for several tensors; shape [].
  template <typename Loss>
    requires std::invocable<Loss&, const at::Tensor&, const at::Tensor&> ||
             std::invocable<Loss&, const Tensors&, const Tensors&>
  PipelineLoss(Loss loss) {  // NOLINT(google-explicit-constructor): a lambda is a loss
    if constexpr (std::invocable<Loss&, const at::Tensor&, const at::Tensor&>) {
      function_ = [loss](const Tensors& outputs, const Tensors& targets) mutable {
        check_argument(outputs.size() == 1 && targets.size() == 1,
                       "pipeline: the loss takes one output and one target; the model returned {} and the batch has {}",
                       outputs.size(), targets.size());
        return loss(outputs[0], targets[0]);
      };
    } else {
      function_ = std::move(loss);
    }
  }
  at::Tensor operator()(const Tensors& outputs, const Tensors& targets) const { return function_(outputs, targets); }

 private:
  Function function_;
};

/// One batch of a training step. Every rank of a pipeline has the same one, as prepared loaders yield it.
struct PipelineBatch {
  std::vector<at::Tensor> inputs = {};   ///< of the first layer, (rows, ...)
  std::vector<at::Tensor> targets = {};  ///< of the loss, (rows, ...)
  /// Over how many items the loss of a micro-batch with these targets is a mean, such as unmasked tokens. Micro-batches
  /// are weighted by it. Default: rows.
  std::function<double(const std::vector<at::Tensor>& targets)> num_items = {};
};

/// The stages of one rank of a pipeline.
///
///     auto net = torch::nn::Sequential(...);                           // complete, and the same on every rank
///     auto stages = accel::pipeline_model(accel::pipeline_layers(net), accelerator.mesh(), {.micro_batches = 8});
///     auto [model, optimizer, batches] = accelerator.prepare(stages, adam, loader);
///     for (auto& [x, y] : batches) {
///       auto loss = accelerator.train_pipeline(model, {.inputs = {x}, .targets = {y}}, cross_entropy);
///       optimizer.step();
///       optimizer.zero_grad();
///     }
///
/// Parameters have the names of the complete model. Their gradients have the bits of one rank that takes the
/// micro-batches one after the other, if no weights are tied between stages. Each layer draws its random numbers
/// (dropout) for each micro-batch from a separate generator, so that they do not depend on the cut either.
/// Thread rule: the rank's thread.
class PipelineModel : public torch::nn::Module, public StagedModule {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Forward = std::function<Tensors(const Tensors&)>;
  /// What surrounds the call of a stage.
  using Surround = std::function<Tensors(const Forward& stage, const Tensors& inputs)>;

  /// Keeps the layers of this rank's stages. `group`: the ranks of the pipeline. Throws ConfigError, which lists all
  /// problems: unknown schedule, fewer layers than stages, wrong split points, too few micro-batches.
  PipelineModel(std::vector<PipelineLayer> layers, Group group, PipelineOptions options);
  ~PipelineModel() override;

  /// Inference: the outputs of the last layer for all rows, on the rank of the last stage; on every rank with
  /// gather_output; else nothing. The batch is cut into up to `micro_batches` parts. Throws StateError with gradients
  /// enabled, unless predict_only was called. Collective.
  Tensors forward(const Tensors& inputs);
  Tensors forward(const at::Tensor& inputs) { return forward(Tensors{inputs}); }

  /// The loss of one micro-batch; called on the rank of the last stage.
  using MicroBatchLoss = std::function<at::Tensor(int micro_batch, const Tensors& outputs)>;
  /// Computes losses and adds gradients: what Accelerator::train_pipeline calls. Returns the detached losses on the
  /// rank of the last stage. Collective.
  Tensors step(const std::vector<Tensors>& micro_batches, const MicroBatchLoss& loss, Surround surround);
  /// Throws ArgumentError, on every rank, if the first batch is not the same on all ranks of the pipeline. Collective
  /// the first time.
  void check_same_batch(const Tensors& batch);
  /// The loss that the last stage's rank has, shape [], on every rank. Collective.
  [[nodiscard]] at::Tensor shared_loss(const at::Tensor& loss) const;
  /// Adds up the gradients of weights that stages on several ranks share. Collective.
  void add_tied_gradients();

  /// For a model that is never trained: `forward` may be called with gradients enabled.
  void predict_only();

  [[nodiscard]] const ModelStages& stages() const override;
  [[nodiscard]] int num_micro_batches() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// The stages that this rank of the mesh's group "pp" holds.
inline std::shared_ptr<PipelineModel> pipeline_model(std::vector<PipelineLayer> layers, const DeviceMesh& mesh,
                                                     PipelineOptions options = {}) {
  return std::make_shared<PipelineModel>(std::move(layers), mesh["pp"], std::move(options));
}

/// Cuts each tensor into `count` parts along dimension 0, of equal sizes but for the last, which may be shorter. Throws
/// ArgumentError for tensors without or with different numbers of rows, and if the rows are too few.
[[nodiscard]] std::vector<std::vector<at::Tensor>> cut_into_micro_batches(const std::vector<at::Tensor>& batch,
                                                                          int count, const char* what);

}  // namespace accel
