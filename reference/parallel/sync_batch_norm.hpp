#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

#include "reference/comm/group.hpp"

/// Batch normalization over the combined batch of all ranks.
///
///     #include <accel/sync_batch_norm.hpp>
///     accel::SyncBatchNorm norm(accel::SyncBatchNormOptions(64));
///     accel::convert_sync_batchnorm(*net);  // every BatchNorm in a Sequential of net
///
/// Forward and backward equal, up to rounding, those of one BatchNorm over the concatenated batch. Ranks may have
/// different numbers of rows, including none. Python's SyncBatchNorm rejects CPU tensors; this one supports them.
/// Thread rule: the rank's thread. Source: torch/nn/modules/batchnorm.py, SyncBatchNorm;
/// torch/nn/modules/_functions.py.
namespace accel {

using SyncBatchNormOptions = torch::nn::BatchNormOptions;

class SyncBatchNormImpl : public torch::nn::NormImplBase<2, SyncBatchNormImpl, SyncBatchNormOptions> {
 public:
  /// Without a group, `prepare` chooses the ranks that read different samples or positions, "dp_cp" of the mesh: those
  /// of a tensor-parallel group read the same ones. An unprepared module then uses the world of the rank whose thread
  /// calls forward.
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options, std::optional<Group> group = std::nullopt);
  /// Shares the parameters, buffers and mode of another norm.
  template <std::size_t D, typename Derived>
  explicit SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& other,
                             std::optional<Group> group = std::nullopt)
      : SyncBatchNormImpl(other.options, std::move(group)) {
    share(other.weight, other.bias, other.running_mean, other.running_var, other.num_batches_tracked);
    train(other.is_training());
  }

  /// Shape: (N, C, ...) -> the same. Collective in training: one all-gather of 2 C + 1 numbers, and one all-reduce of 2
  /// C in backward. Throws ArgumentError, on every rank, if all ranks together have fewer than 2 values per channel.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;
  /// The group of a module that was constructed without one.
  void set_default_group(Group group) { default_group_ = std::move(group); }

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  void share(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
             const at::Tensor& running_var, const at::Tensor& num_batches_tracked);

  std::optional<Group> group_, default_group_;
};
TORCH_MODULE(SyncBatchNorm);

/// Sets the group of every SyncBatchNorm inside the module that was constructed without one. `prepare` calls it with
/// the ranks that read different samples or positions.
void set_default_groups_of_norms(const torch::nn::Module& module, const Group& group);

/// Replaces every BatchNorm1d, 2d and 3d inside the module's Sequentials by a SyncBatchNorm with the same parameters
/// and buffers, so that existing optimizers remain valid. Not a collective.
///
/// Throws ArgumentError, and changes nothing, if a BatchNorm is anywhere else: a member such as `torch::nn::BatchNorm2d
/// norm` cannot be replaced from outside its module; declare it as accel::SyncBatchNorm.
void convert_sync_batchnorm(torch::nn::Module& module, const std::optional<Group>& group = std::nullopt);

}  // namespace accel
