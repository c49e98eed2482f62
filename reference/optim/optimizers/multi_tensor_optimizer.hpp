#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/optim/state_dict/param_group_options.hpp"
#include "reference/optim/state_dict/tensor_lists.hpp"

/// The base class of this library's optimizers: one kernel call for all parameters of a group, and Python's state
/// dicts.
///
///     accel::optim::RMSprop optimizer(net->parameters(), {.lr = 0.01, .momentum = 0.9});
///     optimizer.add_param_group(head->parameters(), {.lr = 0.1});
///     accel::Value saved = optimizer.state_dict();
///
/// An optimizer is a struct of options, with the defaults and ValueErrors of Python's class, and two free functions:
/// `state_entries` (the tensors kept per parameter) and `update`. Parameters without a gradient are skipped. Optional
/// static members of the options declare what is special: `kOnlyOptionEntries` (groups in state dicts have no other
/// entries), `kSparseGradients`, `kNotOnShards` (the reason) and `problem_of(param)` ("" for a supported parameter).
/// Thread rule: the rank's thread. Source: torch/optim/optimizer.py.
namespace accel::optim {

template <typename Options>
struct ParamGroup {
  std::vector<at::Tensor> params = {};
  std::optional<Options> options = {};  // absent: the optimizer's defaults
};

class OptimizerWithStateDict : public torch::optim::Optimizer {
 public:
  using Optimizer::Optimizer;
  [[nodiscard]] virtual Value state_dict() const = 0;
  /// Throws CheckpointError with all problems, and leaves the optimizer unchanged then.
  virtual void load_state_dict(const Value& state_dict) = 0;
  /// Whether there is state from a step; state that is created in the constructor does not count.
  [[nodiscard]] virtual bool has_stepped() const = 0;
  /// Recreates the state that the constructor created, for parameters whose shapes have changed since.
  virtual void restart() = 0;
  /// Whether the next step supports `step_unless`: its kernels skip on one device, and the optimizer has its state.
  [[nodiscard]] virtual bool can_skip_on_device() const = 0;
  /// Steps unless `found_inf` (float32, shape [], on the parameters' device) is above 0. The host does not wait for it.
  virtual void step_unless(const at::Tensor& found_inf) = 0;
  /// Whether a step that was captured as a device graph can be replayed: its kernels read step counts and learning
  /// rates on the device.
  [[nodiscard]] virtual bool is_capturable() const = 0;
  /// See optim::sharding_problem in optimizer_state.hpp.
  [[nodiscard]] virtual std::string sharding_problem() const = 0;
  /// Makes steps read the learning rate of each group from a tensor (float32, shape [], on the parameters' device)
  /// instead of its options; empty: from the options.
  void read_lr_from(std::vector<at::Tensor> lrs) { lrs_ = std::move(lrs); }

 protected:
  [[nodiscard]] at::Tensor lr_tensor(std::size_t group) const { return lrs_.empty() ? at::Tensor() : lrs_.at(group); }

 private:
  std::vector<at::Tensor> lrs_;
};

template <typename Options>
class MultiTensorOptimizer : public OptimizerWithStateDict {
 public:
  using LibTorchOptions = typename GroupOptions<Options>::LibTorch;

  explicit MultiTensorOptimizer(std::vector<at::Tensor> params, const Options& defaults = {})
      : MultiTensorOptimizer(std::vector<ParamGroup<Options>>{{std::move(params), {}}}, defaults) {}
  /// Throws ArgumentError with all problems of the options, or for a parameter that is in two groups.
  explicit MultiTensorOptimizer(const std::vector<ParamGroup<Options>>& groups, const Options& defaults = {});
  /// Accepts LibTorch's class of options, if it has one for this optimizer.
  MultiTensorOptimizer(std::vector<at::Tensor> params, const LibTorchOptions& defaults)
    requires requires { typename Options::LibTorch; }
      : MultiTensorOptimizer(std::move(params), from_libtorch(defaults)) {}

  void add_param_group(std::vector<at::Tensor> params, const Options& options);
  [[nodiscard]] Options options(std::size_t group = 0) const;
  void set_options(const Options& options, std::size_t group = 0);

  at::Tensor step(LossClosure closure = nullptr) override;
  [[nodiscard]] Value state_dict() const override;
  void load_state_dict(const Value& state_dict) override;
  [[nodiscard]] bool has_stepped() const override;
  void restart() override;
  [[nodiscard]] bool can_skip_on_device() const override;
  [[nodiscard]] bool is_capturable() const override;
  [[nodiscard]] std::string sharding_problem() const override;
  void step_unless(const at::Tensor& found_inf) override { update_groups(found_inf); }

 private:
  static constexpr bool kHasStateFromStart = requires { Options::kStateFromStart; };
  static Options from_libtorch(const LibTorchOptions& options);
  void make_state_of(const torch::optim::OptimizerParamGroup& group);
  void update_groups(const at::Tensor& found_inf);
};

}  // namespace accel::optim
