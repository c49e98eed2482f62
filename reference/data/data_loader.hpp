#pragma once

#include <deque>
#include <functional>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/core/tree.hpp"
#include "reference/data/collate.hpp"
#include "reference/data/dataset.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/data/workers.hpp"

/// Batches of a map-style dataset.
///
///     accel::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true});
///     auto batches = accelerator.prepare(loader);          // a DataLoaderShard: this rank's batches
///     for (auto& [image, label] : batches) { ... }
///
/// Each pass draws one int64 from the loader's generator, or the rank's default one, as Python's does.
/// Thread rule: the rank's thread; with workers, the dataset is read by several threads at once.
/// Source: torch/utils/data/dataloader.py; accelerate/data_loader.py, DataLoaderShard.
namespace accel {

/// Stands for default_collate, or for the dataset's own get_batch.
struct DefaultCollate {};

namespace detail {

template <typename Dataset, typename Collate>
auto fetch_batch(Dataset& dataset, Collate& collate, const std::vector<std::int64_t>& indices) {
  if constexpr (std::is_same_v<Collate, DefaultCollate> && BatchedDataset<Dataset>) {
    return dataset.get_batch(indices);
  } else {
    std::vector<std::remove_cvref_t<decltype(dataset.get(std::int64_t{}))>> samples;
    samples.reserve(indices.size());
    for (const auto index : indices) samples.push_back(dataset.get(index));
    if constexpr (std::is_same_v<Collate, DefaultCollate>) {
      return default_collate(samples);
    } else {
      return collate(samples);
    }
  }
}

/// One pass: hands out batches in order, one read ahead where the loader is prepared, so that the last is known as such.
template <typename Batch>
class LoaderPass {
 public:
  using Fetch = std::function<Batch(const std::vector<std::int64_t>&)>;

  LoaderPass(LoaderCore& core, Fetch fetch_batch) : core_(core), fetch_(std::move(fetch_batch)), pass_(core) {
    if (core.options().num_workers > 0) {
      workers_ = std::make_unique<Workers>(core.options().num_workers, static_cast<std::uint64_t>(pass_.base_seed()));
      for (int batch = 0; batch < core.options().num_workers * core.options().prefetch_factor; ++batch) read_ahead();
    }
    if (core.is_prepared()) next_ = fetch();
    advance();
  }

  [[nodiscard]] bool has_batch() const { return current_.has_value(); }
  Batch& batch() { return *current_; }

  void advance() {
    if (!core_.is_prepared()) {
      current_ = fetch();
    } else if (!next_) {
      current_.reset();
    } else {
      current_ = std::move(next_);
      if (core_.moves_batches()) {
        current_ = map_tensors(*current_, [&](const at::Tensor& tensor) { return tensor.to(core_.device(), core_.non_blocking()); });
      }
      next_ = fetch();
      if (!next_) pass_.mark_end();
    }
    if (!current_) {
      pass_.finish(any_batch_);
    }
    any_batch_ = true;
  }

 private:
  std::optional<Batch> fetch() {
    if (!workers_) {
      const auto indices = pass_.next_indices();
      return indices ? std::optional<Batch>(fetch_(*indices)) : std::nullopt;
    }
    if (ahead_.empty()) return std::nullopt;
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return ready.get();
  }

  void read_ahead() {
    auto indices = pass_.next_indices();
    if (!indices) return;
    auto task = std::make_shared<std::packaged_task<Batch()>>([this, batch = std::move(*indices)] { return fetch_(batch); });
    ahead_.push_back(task->get_future());
    workers_->submit([task] { (*task)(); });
  }

  LoaderCore& core_;
  Fetch fetch_;
  LoaderCore::Pass pass_;
  std::deque<std::future<Batch>> ahead_;
  std::unique_ptr<Workers> workers_;  // ends before what its tasks use
  std::optional<Batch> current_, next_;
  bool any_batch_ = false;
};

/// An input iterator; the pass ends with its last copy.
template <typename Batch>
class LoaderIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  explicit LoaderIterator(std::shared_ptr<LoaderPass<Batch>> pass) : pass_(std::move(pass)) {}
  Batch& operator*() const { return pass_->batch(); }
  LoaderIterator& operator++() {
    pass_->advance();
    return *this;
  }
  void operator++(int) { pass_->advance(); }
  friend bool operator==(const LoaderIterator& iterator, std::default_sentinel_t) { return !iterator.pass_->has_batch(); }

 private:
  std::shared_ptr<LoaderPass<Batch>> pass_;
};

}  // namespace detail

template <MapDataset Dataset, typename Collate = DefaultCollate>
class DataLoader {
 public:
  using Batch = decltype(detail::fetch_batch(std::declval<Dataset&>(), std::declval<Collate&>(), {}));

  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {}, Collate collate = {})
      : dataset_(std::make_shared<Dataset>(std::move(dataset))), collate_(std::make_shared<Collate>(std::move(collate))),
        core_(std::make_shared<LoaderCore>(dataset_->size(), std::move(options))) {}

  /// Number of batches of a pass.
  [[nodiscard]] std::int64_t size() const { return core_->size(); }
  [[nodiscard]] Dataset& dataset() const { return *dataset_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return core_->options(); }

  detail::LoaderIterator<Batch> begin() {
    return detail::LoaderIterator<Batch>(std::make_shared<detail::LoaderPass<Batch>>(
        *core_, [dataset = dataset_, collate = collate_](const std::vector<std::int64_t>& indices) {
          return detail::fetch_batch(*dataset, *collate, indices);
        }));
  }
  static std::default_sentinel_t end() { return std::default_sentinel; }

 protected:
  DataLoader(const DataLoader& plain, ShardOptions shard)
      : dataset_(plain.dataset_), collate_(plain.collate_), core_(std::make_shared<LoaderCore>(*plain.core_, std::move(shard))) {}

  std::shared_ptr<Dataset> dataset_;
  std::shared_ptr<Collate> collate_;
  std::shared_ptr<LoaderCore> core_;
};

template <typename Dataset>
DataLoader(Dataset) -> DataLoader<Dataset>;
template <typename Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<Dataset>;
template <typename Dataset, typename Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<Dataset, Collate>;

/// A loader of this rank's batches, on its device; made by Accelerator::prepare. Copies share one state.
template <MapDataset Dataset, typename Collate = DefaultCollate>
class DataLoaderShard : public DataLoader<Dataset, Collate> {
 public:
  DataLoaderShard(const DataLoader<Dataset, Collate>& plain, ShardOptions shard)
      : DataLoader<Dataset, Collate>(plain, std::move(shard)) {}

  /// Samples of one step over all ranks.
  [[nodiscard]] std::int64_t total_batch_size() const { return this->core_->total_batch_size(); }
  [[nodiscard]] std::int64_t total_dataset_length() const { return this->core_->total_dataset_length(); }
  /// The epoch that the next pass shuffles by; counted by itself at the end of each pass.
  void set_epoch(std::int64_t epoch) { this->core_->set_epoch(epoch); }
  [[nodiscard]] std::int64_t iteration() const { return this->core_->iteration(); }
};

}  // namespace accel
