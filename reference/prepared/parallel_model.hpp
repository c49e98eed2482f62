#pragma once

#include <ATen/core/Tensor.h>

#include <exception>
#include <memory>
#include <optional>
#include <typeinfo>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/core/borrowed.hpp"
#include "reference/precision/autocast.hpp"
#include "reference/prepared/gradient_sync.hpp"
#include "reference/prepared/model_forward.hpp"
#include "reference/prepared/model_state.hpp"
#include "reference/prepared/parameter_view.hpp"
#include "reference/state/step_observer.hpp"

namespace torch::nn {
class Module;
}

namespace accel {

class Float8Layers;
class MasterWeights;
class ParameterLayouts;
class RegisteredBuffers;
struct DividedParameter;
struct RankContext;
struct TensorPlacement;

/// One prepared model on several ranks. The handle, the gradient pipeline and checkpoints each use one of its
/// interfaces.
///
/// | class | parameters | gradients |
/// |---|---|---|
/// | UnshardedModel | complete | this rank's own |
/// | ReplicatedModel | complete | averaged by DDP |
/// | ShardedParallelModel | this rank's shards between steps | reduced to shards |
///
/// Thread rule: the rank's thread.
class ParallelModel : public ModelForward, public GradientSync, public ParameterView, public ModelState {
 public:
  struct Options {
    std::optional<Autocast::Options> autocast = {};          ///< empty in full precision
    std::shared_ptr<const Float8Layers> float8_layers = {};  ///< null unless mixed_precision is "fp8"
    std::shared_ptr<StepObserver> listener = {};             ///< may be null
    std::shared_ptr<MasterWeights> masters = {};             ///< null: the optimizer steps the weights themselves
    bool channels_last = false;                              ///< 4-d inputs are converted to that memory format
    bool is_trained = true;                                  ///< false: prepared for evaluation only
    Group peers = {};                                        ///< the tensor-parallel ranks
  };
  ParallelModel(std::shared_ptr<torch::nn::Module> module, ParameterLayouts layouts, Options options);
  ~ParallelModel() override;
  ParallelModel(const ParallelModel&) = delete;
  ParallelModel& operator=(const ParallelModel&) = delete;

  /// The user's module, as Accelerator::unwrap_model returns it.
  [[nodiscard]] const std::shared_ptr<torch::nn::Module>& module() const { return module_; }
  [[nodiscard]] const Options& options() const { return options_; }
  /// Handles of the program; without one, a module that prepare has borrowed may have ended.
  [[nodiscard]] detail::Users& users() { return users_; }
  /// How ranks hold the parameters.
  [[nodiscard]] const ParameterLayouts& layouts() const;
  /// Throws StateError for a sharded model, one with divided layers and one with master weights: `what` is the call
  /// that needs complete parameters.
  void check_is_unsharded(const char* what) const;
  /// Ends this preparation of the module, which is prepared again: its parameters are complete afterwards. Collective
  /// for a sharded model.
  virtual void retire() { is_retired_ = true; }

  // --- checks of the program ----------------------------------------------------------------------------------------
  /// Throws ArgumentError if `after_forward` needs tensors. Called for a type in which none can be found.
  void check_outputs_not_needed(const std::type_info& output) const;
  /// Whether the module had registered the parameter when it was prepared.
  [[nodiscard]] bool registers(const at::Tensor& parameter) const;
  /// Throws StateError if the module was prepared again, or, with gradients enabled, if its parameters are no longer
  /// the tensors that were prepared.
  void check_current(const char* what);
  /// `buffers`: counted before and after the model was prepared.
  void watch_buffers(RegisteredBuffers buffers);
  /// Warns of buffers that the module no longer writes: see RegisteredBuffers.
  void check_buffers(const RankContext& context) const;
  /// Whether `compare_inputs` compares the inputs of the next forward: see PeerCheck.
  [[nodiscard]] bool awaits_inputs() const;
  void compare_inputs(const std::vector<at::Tensor>& inputs, const std::vector<TensorPlacement>& placements);
  /// Compares the gradients of complete parameters over tensor-parallel ranks, before the first step: see PeerCheck.
  void compare_gradients();

 protected:
  /// Throws StateError for an error about sizes in a model whose layers tensor-parallel ranks divide.
  void explain_division(const std::exception& error) const;
  void add_shards(const std::vector<std::pair<at::Tensor, DividedParameter>>& shards);

 private:
  struct Registered;  // what is known of the module's parameters and buffers

  std::shared_ptr<torch::nn::Module> module_;
  Options options_;
  std::unique_ptr<Registered> registered_;
  detail::Users users_;
  bool is_retired_ = false;
};

}  // namespace accel
