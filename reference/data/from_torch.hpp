#pragma once

#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <deque>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "reference/core/thread_safety.hpp"
#include "reference/data/collate.hpp"
#include "reference/data/data_loader.hpp"
#include "reference/data/dataset.hpp"
#include "reference/tree/tree_rows.hpp"

/// Adapters that make torch::data datasets and loaders usable with accel::DataLoader.
///
///     accel::DataLoader loader(accel::from_torch(torch::data::datasets::MNIST(root)),
///                              {.batch_size = 32, .shuffle = true});
///     for (auto& [image, label] : loader) { ... }
///
/// An Example becomes a std::pair of data and target; an Example without target becomes its data.
namespace accel {

namespace detail {

template <Tree T>
T tree_of(T tree) {
  return tree;
}
template <typename Data, typename Target>
auto tree_of(torch::data::Example<Data, Target> example) {
  if constexpr (std::is_void_v<Target>) {
    return tree_of(std::move(example.data));
  } else {
    return std::pair(tree_of(std::move(example.data)), tree_of(std::move(example.target)));
  }
}

/// The samples of a batch that no transform has collated yet.
template <typename Example>
auto samples_of(std::vector<Example> batch) {
  std::vector<decltype(tree_of(std::declval<Example>()))> samples;
  for (auto& example : batch) samples.push_back(tree_of(std::move(example)));
  return samples;
}

/// Converts any batch to one tree.
template <typename Batch>
auto batch_tree_of(Batch batch) {
  if constexpr (is_vector<Batch>::value) {
    return default_collate(samples_of(std::move(batch)));
  } else {
    return tree_of(std::move(batch));
  }
}

/// Returns the samples of any batch; those of a collated batch are its rows.
template <typename Batch>
auto unbatched(Batch batch) {
  if constexpr (is_vector<Batch>::value) {
    return samples_of(std::move(batch));
  } else {
    auto tree = tree_of(std::move(batch));
    for_each_leaf(tree, [](auto& leaf) {
      static_assert(TensorLeaf<decltype(leaf)>, "from_torch: a collated batch must contain only tensors");
    });
    std::vector<decltype(tree)> samples;
    for (std::int64_t row = 0, count = num_rows(tree).value_or(0); row < count; ++row) {
      samples.push_back(map_tensors(tree, [&](const at::Tensor& tensor) { return tensor.select(0, row); }));
    }
    return samples;
  }
}

/// Copies of a dataset, one per active reader: torch::data guarantees its datasets one copy per worker.
template <typename Dataset>
class CopyPool {
 public:
  explicit CopyPool(Dataset prototype) : prototype_(std::move(prototype)) {}

  template <typename F>
  auto with_copy(F&& f) {
    auto copy = take();
    auto result = f(*copy);
    const MutexLock lock(mutex_);
    free_.push_back(std::move(copy));
    return result;
  }

 private:
  std::unique_ptr<Dataset> take() {
    const MutexLock lock(mutex_);
    if (free_.empty()) return std::make_unique<Dataset>(prototype_);
    auto copy = std::move(free_.back());
    free_.pop_back();
    return copy;
  }

  Mutex mutex_;
  const Dataset prototype_;
  std::vector<std::unique_ptr<Dataset>> free_ ACCEL_GUARDED_BY(mutex_);
};

}  // namespace detail

/// A map-style view of a torch::data dataset that is read by index. A collating transform (Stack) produces complete
/// batches; otherwise default_collate or the loader's collate function does.
/// Thread rule: as for any dataset; each active reader uses its own copy of the torch dataset.
template <typename Dataset>
class TorchDataset {
 public:
  /// Throws ArgumentError if the dataset has no size.
  TorchDataset(Dataset dataset) {
    const auto size = dataset.size();
    check_argument(size.has_value(),
                   "from_torch: the dataset is read by index but its size() is unknown; expected a size");
    size_ = static_cast<std::int64_t>(*size);
    copies_ = std::make_shared<detail::CopyPool<Dataset>>(std::move(dataset));
  }

  [[nodiscard]] std::int64_t size() const { return size_; }
  [[nodiscard]] auto get(std::int64_t index) const
    requires(detail::is_vector<typename Dataset::BatchType>::value)
  {
    return std::move(detail::samples_of(read({index})).front());
  }
  [[nodiscard]] auto get_batch(const std::vector<std::int64_t>& indices) const {
    return detail::batch_tree_of(read(indices));
  }

 private:
  [[nodiscard]] auto read(const std::vector<std::int64_t>& indices) const {
    const std::vector<std::size_t> request(indices.begin(), indices.end());
    return copies_->with_copy([&](Dataset& dataset) { return dataset.get_batch(request); });
  }

  std::int64_t size_ = 0;
  std::shared_ptr<detail::CopyPool<Dataset>> copies_;
};

/// An iterable view of a torch::data dataset (stateful or stream) that is asked for a number of examples. A pass over a
/// stream ends after size() samples, or never if it has no size. Thread rule: one thread at a time.
template <typename Dataset>
class TorchStream {
 public:
  /// `num_per_request`: number of examples per request; a ChunkDataset requires its own batch size here.
  TorchStream(Dataset dataset, std::int64_t num_per_request = 1)
      : dataset_(std::move(dataset)), num_per_request_(num_per_request) {
    check_argument(num_per_request > 0, "from_torch: {} examples per request; expected 1 or more", num_per_request);
  }

  void reset() {
    if constexpr (requires { dataset_.reset(); }) dataset_.reset();
    ahead_.clear();
    num_issued_ = 0;
  }

  auto next() {
    while (ahead_.empty() && !ended()) {
      auto samples = request();
      if (!samples) break;
      for (auto& sample : *samples) ahead_.push_back(std::move(sample));
    }
    std::optional<Sample> sample;
    if (ahead_.empty() || ended()) return sample;
    sample = std::move(ahead_.front());
    ahead_.pop_front();
    ++num_issued_;
    return sample;
  }

 private:
  static constexpr bool kIsStateful = Dataset::is_stateful;

  // Returns nullopt at the end of a stateful dataset; earlier batches may be empty.
  static auto samples_of_batch(typename Dataset::BatchType batch) {
    if constexpr (kIsStateful) {
      using Samples = decltype(detail::unbatched(std::move(*batch)));
      return batch ? std::optional(detail::unbatched(std::move(*batch))) : std::optional<Samples>();
    } else {
      return std::optional(detail::unbatched(std::move(batch)));
    }
  }
  auto request() { return samples_of_batch(dataset_.get_batch(static_cast<std::size_t>(num_per_request_))); }
  using Sample =
      typename decltype(samples_of_batch(std::declval<typename Dataset::BatchType>()))::value_type::value_type;

  // A stateful dataset signals its end with an empty optional.
  [[nodiscard]] bool ended() const {
    if constexpr (kIsStateful) {
      return false;
    } else {
      const auto size = dataset_.size();
      return size && num_issued_ >= static_cast<std::int64_t>(*size);
    }
  }

  Dataset dataset_;
  std::int64_t num_per_request_;
  std::deque<Sample> ahead_;
  std::int64_t num_issued_ = 0;
};

/// Converts a torch::data dataset. `num_per_request` applies to datasets that are asked for a number of examples.
template <typename Dataset>
auto from_torch(Dataset dataset, [[maybe_unused]] std::int64_t num_per_request = 1) {
  using Request = typename Dataset::BatchRequestType;
  if constexpr (std::is_same_v<Request, std::size_t>) {
    return TorchStream<Dataset>(std::move(dataset), num_per_request);
  } else {
    static_assert(std::is_same_v<Request, c10::ArrayRef<std::size_t>>,
                  "from_torch: the dataset must accept indices or a number of examples as a request");
    return TorchDataset<Dataset>(std::move(dataset));
  }
}

namespace detail {
template <typename Dataset>
struct FromTorch {};  // no `type` for other types, so that the deduction guides below drop out
template <LibTorchDataset Dataset>
struct FromTorch<Dataset> {
  using type = decltype(from_torch(std::declval<Dataset>()));
};
}  // namespace detail

/// Lets `accel::DataLoader loader(torch::data::datasets::MNIST(root), {.batch_size = 32})` call from_torch.
template <typename Dataset>
DataLoader(Dataset) -> DataLoader<typename detail::FromTorch<Dataset>::type>;
template <typename Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<typename detail::FromTorch<Dataset>::type>;

/// An iterable dataset whose samples are the batches of a torch::data loader.
template <typename Loader>
class TorchBatches {
 public:
  explicit TorchBatches(std::shared_ptr<Loader> loader) : loader_(std::move(loader)) {}

  /// Reads an unfinished pass to its end, because the loader's workers already hold its batches.
  void reset() {
    while (next()) {
    }
    place_.reset();
    ended_ = false;
  }

  auto next() {
    std::optional<Batch> batch;
    if (ended_) return batch;
    if (place_) {
      ++*place_;  // only on demand: this reads a batch
    } else {
      place_.emplace(loader_->begin());
    }
    ended_ = *place_ == loader_->end();
    if (!ended_) batch = detail::batch_tree_of(std::move(**place_));
    return batch;
  }

 private:
  using Batch = decltype(detail::batch_tree_of(std::move(*std::declval<Loader&>().begin())));

  std::shared_ptr<Loader> loader_;
  std::optional<decltype(std::declval<Loader&>().begin())> place_;
  bool ended_ = true;  // until the first reset
};

/// Collate function for samples that are already batches: returns the single sample unchanged.
struct IdentityCollate {
  template <Tree Batch>
  Batch operator()(const std::vector<Batch>& batches) const {
    check_argument(batches.size() == 1, "WholeBatch: got {} batches; expected one; set batch_size to 1",
                   batches.size());
    return batches.front();
  }
};

/// Makes a torch::data loader the source of an accel::DataLoader:
///
///     accel::DataLoader loader(accel::from_torch_loader(std::move(torch_loader)), {.batch_size = 1},
///                              accel::IdentityCollate());
///
/// The batches arrive in the torch loader's order and cannot be selected by index, so rank 0 should read and dispatch
/// them, which is the default for an iterable dataset. A step on N ranks then reads N batches and divides their rows
/// into N equal parts.
template <typename Loader>
auto from_torch_loader(std::unique_ptr<Loader> loader) {
  return TorchBatches<Loader>(std::move(loader));
}

}  // namespace accel
