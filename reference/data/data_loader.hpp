#pragma once

#include <algorithm>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "reference/data/batch_stream.hpp"
#include "reference/data/dispatched_batches.hpp"
#include "reference/data/fetch.hpp"
#include "reference/data/iterable_shard.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/data/loader_pass.hpp"

/// Batches of a dataset, map-style or iterable.
///
///     accel::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true});
///     auto batches = accelerator.prepare(loader);          // a DataLoaderShard: this rank's batches
///     for (auto& [image, label] : batches) { ... }
///
/// A prepared loader reads on every rank, or, where dispatch_batches says so and by default for iterable datasets, on rank
/// 0 alone, which sends each rank its part. Each pass draws one int64 from the loader's generator, or the rank's default
/// one, as Python's does.
/// Thread rule: the rank's thread; with workers, the dataset is read by several threads at once.
/// Source: torch/utils/data/dataloader.py; accelerate/data_loader.py, DataLoaderShard and DataLoaderDispatcher.
namespace accel {

template <typename Dataset, typename Collate = DefaultCollate>
  requires MapDataset<Dataset> || IterableDataset<Dataset>
class DataLoader {
 public:
  using Batch = detail::BatchOf<Dataset, Collate>;

  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {}, Collate collate = {})
      : dataset_(std::make_shared<Dataset>(std::move(dataset))), collate_(std::make_shared<Collate>(std::move(collate))),
        core_(std::make_shared<LoaderCore>(detail::source_of(*dataset_), std::move(options))) {}

  /// Number of batches of a pass. Throws StateError where it is not known: a stream or batch sampler without a length.
  [[nodiscard]] std::int64_t size() const {
    const auto batches = core_->size();
    check_state(batches.has_value(), "size: this loader's length is not known; its dataset or batch sampler tells none");
    return std::max<std::int64_t>(*batches - skip_batches_, 0);
  }
  [[nodiscard]] Dataset& dataset() const { return *dataset_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return core_->options(); }

  detail::LoaderIterator<Batch> begin() {
    return detail::LoaderIterator<Batch>(std::make_shared<detail::LoaderPass<Batch>>(core_, skip_batches_ > 0, [&](LoaderCore::Pass& pass) { return open(pass); }));
  }
  static std::default_sentinel_t end() { return std::default_sentinel; }

 protected:
  DataLoader(const DataLoader& plain, ShardOptions shard)
      : dataset_(plain.dataset_), collate_(plain.collate_), core_(std::make_shared<LoaderCore>(*plain.core_, std::move(shard))) {}

 private:
  template <typename Loader>
  friend Loader skip_first_batches(const Loader& loader, std::int64_t num_batches);

  std::unique_ptr<detail::BatchStream<Batch>> open(LoaderCore::Pass& pass) {
    if (core_->is_prepared()) detail::tell_epoch(*dataset_, *core_);
    const auto base_seed = pass.start();
    if (core_->is_dispatched()) {
      using Dispatched = detail::DispatchedBatches<Batch>;
      return std::make_unique<Dispatched>(
          core_->context(), [this, base_seed] { return read(base_seed); },
          typename Dispatched::Options{.batches_per_step = core_->batches_per_step(), .drop_last = core_->options().drop_last, .skip_batches = skip_batches_});
    }
    auto batches = read(base_seed);
    for (std::int64_t batch = 0; batch < skip_batches_ && batches->skip(); ++batch) {}
    if (core_->is_prepared()) return std::make_unique<detail::LookAhead<Batch>>(std::move(batches));
    return batches;
  }

  std::unique_ptr<detail::BatchStream<Batch>> read(std::uint64_t base_seed) {
    const auto workers = core_->options().num_workers, prefetch = core_->options().prefetch_factor;
    if constexpr (MapDataset<Dataset>) {
      core_->steps().begin_pass();
      return std::make_unique<detail::IndexedBatches<Batch>>(
          core_->steps(), [dataset = dataset_, collate = collate_](const auto& indices) { return detail::fetch_batch(*dataset, *collate, indices); },
          typename detail::IndexedBatches<Batch>::ReadAheadOptions{.num_workers = workers, .prefetch_factor = prefetch, .base_seed = base_seed});
    } else {
      const auto collate_samples = [collate = collate_](const auto& samples) { return detail::collate_with(*collate, samples); };
      std::unique_ptr<detail::BatchStream<Batch>> batches = std::make_unique<detail::IterableDatasetShard<Dataset, decltype(collate_samples), Batch>>(
          dataset_, collate_samples, core_->reading(), core_->reading_rank());
      if (workers == 0) return batches;
      return std::make_unique<detail::ReadAhead<Batch>>(std::move(batches), workers * prefetch, base_seed);
    }
  }

 protected:
  std::shared_ptr<Dataset> dataset_;
  std::shared_ptr<Collate> collate_;
  std::shared_ptr<LoaderCore> core_;
  std::int64_t skip_batches_ = 0;
};

template <typename Dataset>
DataLoader(Dataset) -> DataLoader<Dataset>;
template <typename Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<Dataset>;
template <typename Dataset, typename Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<Dataset, Collate>;

/// A loader of this rank's batches, on its device; made by Accelerator::prepare. Copies share one state.
template <typename Dataset, typename Collate = DefaultCollate>
class DataLoaderShard : public DataLoader<Dataset, Collate> {
 public:
  DataLoaderShard(const DataLoader<Dataset, Collate>& plain, ShardOptions shard)
      : DataLoader<Dataset, Collate>(plain, std::move(shard)) {}

  /// Rank 0 reads for all, as Accelerate's DataLoaderDispatcher.
  [[nodiscard]] bool is_dispatched() const { return this->core_->is_dispatched(); }
  /// Samples of one step over all ranks.
  [[nodiscard]] std::int64_t total_batch_size() const { return this->core_->total_batch_size(); }
  [[nodiscard]] std::int64_t total_dataset_length() const { return this->core_->total_dataset_length(); }
  /// The epoch that the next pass shuffles by; counted by itself at the end of each pass.
  void set_epoch(std::int64_t epoch) { this->core_->set_epoch(epoch); }
  [[nodiscard]] std::int64_t iteration() const { return this->core_->iteration(); }
};

/// The same loader without the first `num_batches` batches of each pass, to go on inside an epoch: a cursor on the loader,
/// which shares its epoch and its generators, so that a pass over either is followed by the next epoch of both.
/// `num_batches` counts the batches that one rank gets, in every mode. Throws ArgumentError if it is negative.
/// Source: accelerate/data_loader.py, skip_first_batches.
template <typename Loader>
Loader skip_first_batches(const Loader& loader, std::int64_t num_batches) {
  check_argument(num_batches >= 0, "skip_first_batches: expected 0 or more batches, got {}", num_batches);
  Loader skipping = loader;
  check_argument(num_batches <= std::numeric_limits<std::int64_t>::max() - skipping.skip_batches_, "skip_first_batches: {} more batches are too many", num_batches);
  skipping.skip_batches_ += num_batches;
  return skipping;
}

}  // namespace accel
