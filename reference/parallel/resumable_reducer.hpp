#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/config/plugins/options.hpp"
#include "reference/core/named_tensors.hpp"
#include "reference/parallel/comm_hook.hpp"
#include "reference/tree/value.hpp"

namespace accel {

/// Per bucket: places of parameters.
using Buckets = std::vector<std::vector<std::size_t>>;

Value to_value(const Buckets& buckets);
/// Throws ArgumentError unless the buckets contain each of `num_parameters` parameters once.
Buckets buckets_of(const Value& value, std::size_t num_parameters);

/// After the first backward pass the reducer rebuilds its buckets in the order in which gradients became ready. A
/// resumed run must start with the rebuilt buckets, which c10d offers no way to save or set; hence the protected
/// members.
class ResumableReducer final : public c10d::Reducer {
 public:
  using Reducer::Reducer;

  /// Whether the current backward pass is averaged over the ranks.
  [[nodiscard]] bool reduces() const { return expect_autograd_hooks_; }
  /// Undoes the preparation for a backward pass that does not come.
  void expect_no_backward() { expect_autograd_hooks_ = false; }
  /// Whether gradients of a pass have arrived, but not all.
  [[nodiscard]] bool is_incomplete() const { return require_finalize_; }
  [[nodiscard]] bool has_rebuilt_buckets() const { return has_rebuilt_bucket_; }
  [[nodiscard]] Buckets buckets() const {
    Buckets buckets;
    for (const auto& bucket : buckets_) buckets.push_back(bucket.variable_indices);
    return buckets;
  }
  void resume_with_buckets(Buckets buckets) {
    initialize_buckets(std::move(buckets));
    rebuilt_params_.clear();
    rebuilt_param_indices_.clear();
    has_rebuilt_bucket_ = true;
  }
};

/// A reducer and what belongs to it.
struct ReducerParts {
  std::shared_ptr<ResumableReducer> reducer = {};
  std::shared_ptr<c10d::Logger> logger = {};     ///< the reducer dereferences it without a null check
  CommHook* hook = nullptr;                      ///< owned by the reducer; null: gradients are sent unchanged
  std::shared_ptr<bool> delays_all_reduce = {};  ///< true during the first backward pass of a static graph
  std::int64_t bucket_bytes = 0, first_bucket_bytes = 0;
  bool has_sparse_gradients = false;
};

/// Creates the reducer of these parameters as Python's DistributedDataParallel does. `sparse`: those whose gradients
/// are sparse.
ReducerParts make_reducer(const NamedTensors& parameters, const std::vector<at::Tensor>& sparse, const Group& group,
                          const DistributedDataParallelKwargs& kwargs);

}  // namespace accel
