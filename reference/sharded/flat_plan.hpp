#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "reference/modules/model_description.hpp"

/// Where the elements of parameters lie when they are one flat buffer, cut into equal shards. Pure: no tensors, no
/// ranks that talk.
///
/// Parameters follow one another, each in row-major order, then zeros until the shards are equal: the layout of
/// PyTorch's FSDP1, whose sums over ranks these are to the bit. With `use_orig_params` each begins at a multiple of 16
/// bytes there: `alignment`, in elements. Thread rule: values. Source: torch/distributed/fsdp/_flat_param.py.
namespace accel::sharded {

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0, end = 0;
  [[nodiscard]] std::int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// Empty where they do not meet.
[[nodiscard]] Range intersection(Range a, Range b);

class FlatPlan {
 public:
  FlatPlan(std::vector<ParameterShape> parameters, int num_shards, int alignment = 1);

  [[nodiscard]] const std::vector<ParameterShape>& parameters() const { return parameters_; }
  [[nodiscard]] int num_shards() const { return num_shards_; }
  /// With what lies between parameters.
  [[nodiscard]] std::int64_t numel() const { return begins_.empty() ? 0 : range(begins_.size() - 1).end; }
  [[nodiscard]] std::int64_t shard_numel() const { return (numel() + num_shards_ - 1) / num_shards_; }
  /// With the zeros behind the last parameter.
  [[nodiscard]] std::int64_t padded_numel() const { return shard_numel() * num_shards_; }
  /// Of a parameter, in the flat buffer.
  [[nodiscard]] Range range(std::size_t parameter) const {
    return {begins_[parameter], begins_[parameter] + parameters_[parameter].numel()};
  }
  /// Of a shard, in the flat buffer.
  [[nodiscard]] Range shard(int index) const { return {index * shard_numel(), (index + 1) * shard_numel()}; }
  /// What a shard holds of a parameter, in the parameter's own elements; empty where it holds none.
  [[nodiscard]] Range part(std::size_t parameter, int shard_index) const;
  /// The same, in the shard's elements.
  [[nodiscard]] Range part_in_shard(std::size_t parameter, int shard_index) const;

 private:
  std::vector<ParameterShape> parameters_;
  std::vector<std::int64_t> begins_;
  int num_shards_;
};

}  // namespace accel::sharded
