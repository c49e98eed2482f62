#include "reference/models/residual_stream.hpp"

#include "reference/modules/call.hpp"
#include "reference/tensor_parallel/cut_random.hpp"
#include "reference/tensor_parallel/operators.hpp"

namespace accel::models {

using parallel::Sharded;

ResidualStream::ResidualStream(const GptOptions& options, const DeviceMesh& mesh)
    : group_(mesh["tp"]), is_sequence_parallel_(options.sequence_parallel && group_.size() > 1) {}

HiddenStates ResidualStream::embed(parallel::VocabParallelEmbedding& embedding, const at::Tensor& tokens) const {
  if (is_sequence_parallel_) return {call(embedding, tokens, parallel::ToSequence()).local};
  return {call(embedding, tokens).local};
}

// Scattered after the lookup, so that every rank has the complete gradient of the table.
at::Tensor ResidualStream::own_positions(const at::Tensor& rows) const {
  return is_sequence_parallel_ ? parallel::scatter<0>({rows}, group_).local : rows;
}

parallel::Copied ResidualStream::enter(const HiddenStates& values) const {
  if (is_sequence_parallel_) return parallel::gather_copied(Sharded<1>{values.local}, group_);
  return parallel::copy({values.local}, group_);
}

HiddenStates ResidualStream::leave(parallel::RowParallelLinear& projection, const Sharded<-1>& values) const {
  if (is_sequence_parallel_) return {call(projection, values, parallel::ToSequence()).local};
  return {call(projection, values).local};
}

// Every rank has the complete gradient of such a layer's input, so backward selects and gathers parts without a sum.
at::Tensor ResidualStream::complete(const HiddenStates& values) const {
  return is_sequence_parallel_ ? parallel::gather(Sharded<1>{values.local}, group_).local : values.local;
}

HiddenStates ResidualStream::own_part(const at::Tensor& complete) const {
  return {is_sequence_parallel_ ? parallel::scatter<1>({complete}, group_).local : complete};
}

at::Tensor ResidualStream::parameter(const at::Tensor& value) const {
  return is_sequence_parallel_ && value.defined() ? parallel::shared_parameter(value, group_) : value;
}

HiddenStates ResidualStream::drop(torch::nn::Dropout& dropout, const HiddenStates& values) const {
  std::optional<parallel::CutRandom> random;
  if (is_sequence_parallel_ && dropout->is_training() && dropout->options.p() > 0) random.emplace(group_);
  return {dropout(values.local)};
}

}  // namespace accel::models
