#pragma once

#include <torch/nn/modules/embedding.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "reference/modules/linear.hpp"
#include "reference/modules/parameter_cut.hpp"
#include "reference/tensor_parallel/placement.hpp"

/// Layers whose weights are divided over the ranks of a group: tensor parallelism.
///
///     ColumnParallelLinear expansion(ParallelLinearOptions{.in = 64, .out = 256}, group);
///     RowParallelLinear projection(ParallelLinearOptions{.in = 256, .out = 64}, group);
///     ...
///     const auto hidden = elementwise(call(expansion, copy(values, group)), [](auto& x) { return x.relu(); });
///     return call(projection, hidden);    // Replicated: summed over the group
///
/// A constructor draws the complete weight and keeps the rank's part, so a model has the same initial numbers in every
/// layout. Parameters have the names of the undivided layers, and checkpoints contain complete tensors. In a group of
/// one rank the layers compute what nn::Linear and nn::Embedding do. forward and backward are collective. Thread rule:
/// modules belong to their rank. Source: github.com/NVIDIA/Megatron-LM, megatron/core/tensor_parallel/layers.py.
namespace accel::parallel {

struct ParallelLinearOptions {
  std::int64_t in = 0, out = 0;  ///< features of the complete layer
  bool bias = true;
  /// Lengths along the dimension that is divided, if it consists of several parts, such as queries, keys and values.
  std::vector<std::int64_t> sections = {};
};

/// Selects the overload of `forward` that ends in sequence parallelism, for accel::call, which calls `forward`.
struct ToSequence {};

/// The output features are divided. A number that is not a multiple of the group's size is divided as torch.chunk does,
/// so that the last ranks have fewer. Throws ConfigError if a rank would have none, or if one of several sections is
/// not a multiple of the group's size.
class ColumnParallelLinearImpl : public models::LinearImpl, public CutModule {
 public:
  ColumnParallelLinearImpl(const ParallelLinearOptions& options, Group group);
  /// (..., in) -> (..., out / size)
  Sharded<-1> forward(const Copied& input);
  [[nodiscard]] std::map<std::string, ParameterCut> cuts() const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  ParameterCut cut_;
};
TORCH_MODULE(ColumnParallelLinear);

/// The input features are divided, as those of ColumnParallelLinear. Every rank holds the bias, which is added once,
/// after the sum. Throws ConfigError for the same numbers.
class RowParallelLinearImpl : public models::LinearImpl, public CutModule {
 public:
  RowParallelLinearImpl(const ParallelLinearOptions& options, Group group);
  /// (..., in / size) -> (..., out)
  Replicated forward(const Sharded<-1>& input);
  /// Sequence parallelism: (batch, length, in / size) -> (batch, length / size, out). Throws ArgumentError if the
  /// length does not divide.
  Sharded<1> forward(const Sharded<-1>& input, ToSequence);
  [[nodiscard]] std::map<std::string, ParameterCut> cuts() const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  Partial product(const Sharded<-1>& input) const;
  ParameterCut cut_;
};
TORCH_MODULE(RowParallelLinear);

/// The rows of the table, one per token, are divided; the last ranks have fewer if their number is not a multiple of
/// the group's size. Throws ConfigError if a rank would have none.
class VocabParallelEmbeddingImpl : public torch::nn::EmbeddingImpl, public CutModule {
 public:
  VocabParallelEmbeddingImpl(const torch::nn::EmbeddingOptions& options, Group group);
  /// (...) int64, equal on all ranks -> (..., embedding_dim)
  Replicated forward(const at::Tensor& tokens);
  /// Sequence parallelism: (batch, length) -> (batch, length / size, embedding_dim).
  Sharded<1> forward(const at::Tensor& tokens, ToSequence);
  [[nodiscard]] std::map<std::string, ParameterCut> cuts() const override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  Partial looked_up(const at::Tensor& tokens);
  ParameterCut cut_;
};
TORCH_MODULE(VocabParallelEmbedding);

struct VocabCrossEntropyOptions {
  std::int64_t ignore_index = -100;  ///< targets that do not count; their loss is 0
  /// Over the targets that count: "mean", which is NaN without any, or "sum", both of shape []; or "none": shape (N).
  std::string reduction = "mean";
};

/// The cross entropy of logits whose last dimension, the vocabulary, is divided: (N, V / size), with `targets` (N)
/// int64 that are equal on all ranks, -> float32 or float64. Never assembles all logits.
///
///     const auto sum = vocab_parallel_cross_entropy(logits, targets, mesh["tp"], {.reduction = "sum"}).local;
///     const auto loss = token_mean(sum, targets.ne(-100).sum(), mesh["dp_cp"]);  // also without counted targets
///
/// Throws ArgumentError, on the CPU also for targets outside of the vocabulary. Source:
/// megatron/core/tensor_parallel/cross_entropy.py.
Replicated vocab_parallel_cross_entropy(const Sharded<-1>& logits, const at::Tensor& targets, const Group& group,
                                        const VocabCrossEntropyOptions& options = {});

/// A parameter that every rank holds, such as a norm's weight, used on values of which each rank has a part. Its
/// gradient is then summed over the group.
at::Tensor shared_parameter(const at::Tensor& parameter, const Group& group);

}  // namespace accel::parallel

namespace accel {

template <>
inline constexpr auto tree_members<parallel::ToSequence> = std::tuple();

}  // namespace accel
