#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

#include "reference/comm/group.hpp"

/// Batch normalization with the statistics of all ranks' batches together.
///
///     #include <accel/sync_batch_norm.hpp>
///     accel::SyncBatchNorm norm(accel::SyncBatchNormOptions(64));
///     accel::convert_sync_batchnorm(*net);  // every BatchNorm in a Sequential of net
///
/// Forward and backward equal, up to rounding, those of one BatchNorm over the concatenated batch; ranks may have
/// different numbers of rows, none included. Python's refuses the CPU; here it runs there as well. Thread rule: the
/// rank's thread. Source: torch/nn/modules/batchnorm.py, SyncBatchNorm; torch/nn/modules/_functions.py.
namespace accel {

using SyncBatchNormOptions = torch::nn::BatchNormOptions;

class SyncBatchNormImpl : public torch::nn::NormImplBase<2, SyncBatchNormImpl, SyncBatchNormOptions> {
 public:
  /// Without a group: the world of the rank whose thread calls forward.
  explicit SyncBatchNormImpl(const SyncBatchNormOptions& options, std::optional<Group> group = std::nullopt);
  /// With the parameters, buffers and mode of another.
  template <std::size_t D, typename Derived>
  explicit SyncBatchNormImpl(const torch::nn::BatchNormImplBase<D, Derived>& other,
                             std::optional<Group> group = std::nullopt)
      : SyncBatchNormImpl(other.options, std::move(group)) {
    share(other.weight, other.bias, other.running_mean, other.running_var, other.num_batches_tracked);
    train(other.is_training());
  }

  /// (N, C, ...) -> the same. In training collective: one all-gather of 2 C + 1 numbers, in backward one all-reduce of
  /// 2 C. Throws ArgumentError, on every rank, if all ranks together have less than 2 values per channel.
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 protected:
  void _check_input_dim(const at::Tensor& input) override;

 private:
  void share(const at::Tensor& weight, const at::Tensor& bias, const at::Tensor& running_mean,
             const at::Tensor& running_var, const at::Tensor& num_batches_tracked);

  std::optional<Group> group_;
};
TORCH_MODULE(SyncBatchNorm);

/// Puts a SyncBatchNorm in the place of every BatchNorm1d, 2d and 3d inside the module's Sequentials, with the same
/// parameters and buffers, so that optimizers made before stay right. Not a collective.
///
/// Throws ArgumentError, and changes nothing, if a BatchNorm is anywhere else: a member `torch::nn::BatchNorm2d norm`
/// is the module's own variable, which nobody else can replace; declare it accel::SyncBatchNorm.
void convert_sync_batchnorm(torch::nn::Module& module, const std::optional<Group>& group = std::nullopt);

}  // namespace accel
