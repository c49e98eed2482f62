#pragma once

#include <ATen/core/Tensor.h>

#include "reference/comm/group.hpp"

/// The loss of ranks that count different numbers of tokens.
///
///     const auto loss_sum = at::cross_entropy_loss(logits, labels, {}, at::Reduction::Sum);
///     const auto loss = token_mean(loss_sum, labels.ne(-100).sum(), mesh["dp_cp"]);
///     accelerator.backward(loss);
///
/// An average of the ranks' means would give more weight to the tokens of ranks that count few. This changes the
/// gradient silently where labels are masked or samples are padded. Thread rule: the rank's thread.
namespace accel::parallel {

/// loss_sum * group.size() / (sum of all ranks' num_tokens): its average over the ranks of the group is the mean over
/// all tokens, and so is the gradient that DistributedDataParallel averages over them.
///
/// `loss_sum`: the sum over this rank's counted tokens, shape []. `num_tokens`: their number, an integer of shape [],
/// which may be 0; if it is 0 on all ranks, the result is NaN, as in at::cross_entropy_loss. `group`: the ranks over
/// which gradients are averaged. Collective; backward does not communicate. Throws ArgumentError for another shape or
/// dtype.
at::Tensor token_mean(const at::Tensor& loss_sum, const at::Tensor& num_tokens, const Group& group);

}  // namespace accel::parallel
