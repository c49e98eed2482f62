#pragma once

#include <torch/nn/modules/dropout.h>

#include "reference/models/gpt_options.hpp"
#include "reference/state/device_mesh.hpp"
#include "reference/tensor_parallel/layers.hpp"

/// The values between the layers of a gpt, and how layers with divided weights read and write them.
///
///     const auto inner = call(expansion_, stream_.enter(values));
///     return stream_.leave(projection_, elementwise(inner, activation));
///
/// Thread rule: values of the rank's thread.
namespace accel::models {

/// (B, T, width), equal on all tensor-parallel ranks. With sequence parallelism (B, T / ranks, width), those of the
/// rank's positions. Only ResidualStream converts them to the inputs of divided layers and back.
struct HiddenStates {
  at::Tensor local = {};
};

/// Dropout and parameters of a group of one rank are those of a model without a mesh.
class ResidualStream {
 public:
  ResidualStream(const GptOptions& options, const DeviceMesh& mesh);

  /// The tensor-parallel ranks.
  [[nodiscard]] const Group& group() const { return group_; }
  /// Tokens (B, T) -> their embeddings.
  HiddenStates embed(parallel::VocabParallelEmbedding& embedding, const at::Tensor& tokens) const;
  /// (T, width), equal on all ranks -> the rows of the rank's positions.
  [[nodiscard]] at::Tensor own_positions(const at::Tensor& rows) const;
  /// Complete hidden states, the input of a column-parallel layer.
  [[nodiscard]] parallel::Copied enter(const HiddenStates& values) const;
  /// Calls the row-parallel layer that ends a divided region.
  HiddenStates leave(parallel::RowParallelLinear& projection, const parallel::Sharded<-1>& values) const;
  /// Complete hidden states, for a layer that every rank computes completely, and the states after that layer.
  [[nodiscard]] at::Tensor complete(const HiddenStates& values) const;
  [[nodiscard]] HiddenStates own_part(const at::Tensor& complete) const;
  /// A parameter that all ranks hold, for use on hidden states. May be undefined.
  [[nodiscard]] at::Tensor parameter(const at::Tensor& value) const;
  /// Ranks draw equal numbers for equal positions, and different ones for different positions.
  HiddenStates drop(torch::nn::Dropout& dropout, const HiddenStates& values) const;

 private:
  Group group_;
  bool is_sequence_parallel_;
};

}  // namespace accel::models

namespace accel {

template <>
inline constexpr auto tree_members<models::HiddenStates> = std::tuple(&models::HiddenStates::local);

}  // namespace accel
