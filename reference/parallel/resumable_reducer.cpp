#include "reference/parallel/resumable_reducer.hpp"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/logger.hpp>

#include <algorithm>
#include <limits>
#include <string>
#include <unordered_map>

#include "reference/core/errors.hpp"

namespace accel {
namespace {

constexpr std::int64_t kMiB = 1 << 20;
// Sizes as in torch/nn/parallel/distributed.py: another size gives other buckets, and so other roundings of the sums.
constexpr std::int64_t kFirstBucketBytes = kMiB;  // dist._DEFAULT_FIRST_BUCKET_BYTES
constexpr std::int64_t kDefaultBucketBytes = 25 * kMiB;

// Sets the sizes of rebuilt buckets, and returns the size limits of the initial ones.
std::vector<std::size_t> choose_bucket_limits(const DistributedDataParallelKwargs& kwargs, ReducerParts& parts) {
  // Accelerate only passes options that differ from its defaults: an explicit 25 also has a first bucket of 1 MiB.
  const bool has_own_limit = kwargs.bucket_cap_mb.has_value() && *kwargs.bucket_cap_mb * kMiB != kDefaultBucketBytes;
  parts.bucket_bytes = has_own_limit ? *kwargs.bucket_cap_mb * kMiB : kDefaultBucketBytes;
  parts.first_bucket_bytes = has_own_limit ? parts.bucket_bytes : kFirstBucketBytes;
  if (kwargs.static_graph || !kwargs.find_unused_parameters) return {std::numeric_limits<std::int64_t>::max()};
  if (has_own_limit) return {static_cast<std::size_t>(parts.bucket_bytes)};
  return {static_cast<std::size_t>(kFirstBucketBytes), static_cast<std::size_t>(parts.bucket_bytes)};
}

}  // namespace

Value to_value(const Buckets& buckets) {
  Value::List list;
  for (const auto& bucket : buckets) {
    Value::List indices;
    for (const auto index : bucket) indices.emplace_back(static_cast<std::int64_t>(index));
    list.emplace_back(std::move(indices));
  }
  return list;
}

Buckets buckets_of(const Value& value, std::size_t num_parameters) {
  Buckets buckets;
  std::vector<bool> is_there(num_parameters, false);
  std::size_t count = 0;
  for (const auto& indices : value.as<Value::List>()) {
    auto& bucket = buckets.emplace_back();
    for (const auto& index : indices.as<Value::List>()) {
      const auto place = static_cast<std::size_t>(index.as<std::int64_t>());
      check_argument(place < num_parameters && !is_there[place],
                     "buckets: index {} is out of range or listed twice; expected each parameter once", place);
      is_there[place] = true;
      ++count;
      bucket.push_back(place);
    }
  }
  check_argument(count == num_parameters, "buckets: they list {} parameters, but the model has {}", count,
                 num_parameters);
  return buckets;
}

ReducerParts make_reducer(const NamedTensors& named, const std::vector<at::Tensor>& sparse, const Group& group,
                          const DistributedDataParallelKwargs& kwargs) {
  ReducerParts parts;
  std::vector<at::Tensor> parameters;
  std::vector<bool> are_sparse;
  std::unordered_map<std::size_t, std::string> names;
  for (const auto& [name, parameter] : named) {
    names.emplace(names.size(), name);
    parameters.push_back(parameter);
    are_sparse.push_back(
        std::ranges::any_of(sparse, [&parameter = parameter](const auto& other) { return other.is_same(parameter); }));
  }
  parts.has_sparse_gradients = std::ranges::count(are_sparse, true) > 0;
  const auto limits = choose_bucket_limits(kwargs, parts);
  auto buckets = std::get<0>(c10d::compute_bucket_assignment_by_size(parameters, limits, are_sparse));
  // Reversed, as in Python: gradients arrive roughly in the reverse order of the parameters.
  std::reverse(buckets.begin(), buckets.end());
  parts.delays_all_reduce = std::make_shared<bool>(kwargs.static_graph);
  const auto reducing =
      kwargs.static_graph ? blocking_group(group, parameters.front().device(), parts.delays_all_reduce) : group;
  parts.reducer = std::make_shared<ResumableReducer>(
      parameters, std::move(buckets), reducing.process_group(), are_sparse, parts.bucket_bytes,
      kwargs.find_unused_parameters, kwargs.gradient_as_bucket_view.value_or(false), std::move(names),
      parts.first_bucket_bytes, /*skip_all_reduce_unused_params=*/false, /*use_python_reducer=*/false,
      /*bucket_bytes_cap_list=*/std::vector<std::int64_t>{});
  parts.logger = std::make_shared<c10d::Logger>(parts.reducer);
  parts.reducer->set_logger(parts.logger);
  if (kwargs.static_graph) parts.reducer->set_static_graph();
  if (auto comm_hook = make_comm_hook(kwargs, reducing)) {
    parts.hook = comm_hook.get();
    parts.reducer->register_comm_hook(std::move(comm_hook));
  }
  return parts;
}

}  // namespace accel
