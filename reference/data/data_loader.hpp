#pragma once

#include <algorithm>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <utility>

#include "reference/data/batch_stream.hpp"
#include "reference/data/dispatched_batches.hpp"
#include "reference/data/even_steps.hpp"
#include "reference/data/fetch.hpp"
#include "reference/data/iterable_shard.hpp"
#include "reference/data/loader.hpp"
#include "reference/data/loader_iterator.hpp"
#include "reference/data/pass.hpp"
#include "reference/data/sharded_stream.hpp"

/// Iterates over the batches of a map-style or iterable dataset.
///
///     accel::DataLoader loader(dataset, {.batch_size = 32, .shuffle = true});
///     auto batches = accelerator.prepare(loader);          // a DataLoaderShard: this rank's batches
///     for (auto& [image, label] : batches) { ... }
///
/// A prepared loader reads on every rank. With dispatch_batches, which is the default for iterable datasets, only rank
/// 0 reads and sends each rank its part. Each pass draws one int64 from the loader's generator, or from the rank's
/// default generator, as in Python; with persistent_workers only the first pass does.
///
/// The position in the data can be saved at any time, also inside a loop:
///
///     std::string bytes = accel::pack(batches.state_dict());           // one per rank
///     ...
///     batches.load_state_dict(accel::unpack<accel::Value>(bytes));  // in a new process; the next loop resumes
///
/// Thread rule: the rank's thread. With workers, several threads read the dataset concurrently.
/// Source: torch/utils/data/dataloader.py; accelerate/data_loader.py, DataLoaderShard and DataLoaderDispatcher.
namespace accel {

template <typename Dataset, typename Collate = DefaultCollate>
  requires MapDataset<Dataset> || IterableDataset<Dataset>
class DataLoader {
 public:
  using Batch = detail::BatchOf<Dataset, Collate>;

  explicit DataLoader(Dataset dataset, DataLoaderOptions options = {}, Collate collate = {})
      : dataset_(std::make_shared<Dataset>(std::move(dataset))),
        collate_(std::make_shared<Collate>(std::move(collate))),
        loader_(std::make_shared<detail::Loader>(detail::source_of(*dataset_), std::move(options))) {}
  /// An empty handle, as left by release_memory.
  explicit DataLoader(std::nullptr_t) {}

  /// Number of batches of a pass. Throws StateError if it is unknown: a stream or batch sampler without a length.
  [[nodiscard]] std::int64_t size() const {
    const auto batches = loader_->size();
    check_state(batches.has_value(),
                "size: the length of this loader is unknown; its dataset or batch sampler does not define size(); "
                "define it, or iterate until the loader ends");
    return std::max<std::int64_t>(*batches - *skip_batches_, 0);
  }
  [[nodiscard]] Dataset& dataset() const { return *dataset_; }
  [[nodiscard]] const DataLoaderOptions& options() const { return loader_->options(); }

  /// Returns the state at the start of the epoch and the position up to which batches were handed out. Prefetched
  /// batches do not count. After a loop that was left by break, the state keeps that position until the next loop. It
  /// contains the workers' generators, but not the rank's default generator.
  [[nodiscard]] Value state_dict() const { return to_value(loader_->state()); }
  /// The next pass resumes after the batches of `state` and yields the same batches as the saved pass would have.
  /// Skipped samples are not read, except for streams that cannot skip, and for the first step where rank 0 or separate
  /// parts are read, because it may pad the last step. Every rank must load a state of the same moment. To resume with
  /// another world size, load the state of rank 0 on every rank. With another number of workers or ranks the workers'
  /// random draws restart. Collective if every rank reads separate parts without even_batches.
  /// Throws CheckpointError, which lists all problems, if the state does not match; StateError inside a pass.
  void load_state_dict(const Value& state) { loader_->load_state_dict(state); }

  detail::LoaderIterator<Batch> begin(std::source_location where = std::source_location::current()) {
    const CallSite site(where);
    loader_->warn_about_unsharded_reads(where);
    auto pass = std::make_shared<detail::Pass>(loader_, *skip_batches_);
    detail::LoaderIterator<Batch> first(pass, open(*pass), where);
    *skip_batches_ = 0;
    return first;
  }
  static std::default_sentinel_t end() { return std::default_sentinel; }

  /// For compatibility with LibTorch's loaders, which are pointers: `for (auto& batch : *loader)`.
  DataLoader& operator*() { return *this; }
  DataLoader* operator->() { return this; }

 protected:
  DataLoader(const DataLoader& plain, ShardOptions shard)
      : dataset_(plain.dataset_),
        collate_(plain.collate_),
        loader_(std::make_shared<detail::Loader>(*plain.loader_, std::move(shard))) {
    check_state(*plain.skip_batches_ == 0,
                "prepare: the loader skips {} batches; call prepare before skip_first_batches", *plain.skip_batches_);
  }

 private:
  template <typename Loader>
  friend Loader skip_first_batches(const Loader& loader, std::int64_t num_batches);

  using Stream = detail::BatchStream<Batch>;

  std::unique_ptr<Stream> open(detail::Pass& pass) {
    if (pass.has_nothing_left()) return std::make_unique<detail::NoBatches<Batch>>();
    const auto error = start(pass);
    const bool others_learn = loader_->is_dispatched() || loader_->evens_steps();
    if (error && !others_learn) std::rethrow_exception(error);
    const auto open_rest = [loader = *this, &pass, error] {
      if (error) std::rethrow_exception(error);
      return loader.read(pass);
    };
    const auto resumed = pass.record().ahead_state;
    if (loader_->is_dispatched()) {
      return std::make_unique<detail::DispatchedBatches<Batch>>(
          loader_->context(), open_rest,
          typename detail::DispatchedBatches<Batch>::Options{.batches_per_step = loader_->batches_per_step(),
                                                             .drop_last = loader_->options().drop_last,
                                                             .num_parts = loader_->data_parallel().size,
                                                             .part = loader_->data_parallel().rank,
                                                             .full_rows = loader_->full_rows(),
                                                             .resumed = resumed,
                                                             .read_first_batches = read_first_batches(pass, error),
                                                             .slice = slice_for_dispatch_});
    }
    if (!loader_->is_prepared()) return read(pass);
    if (loader_->evens_steps()) {
      return std::make_unique<detail::EvenSteps<Batch>>(
          open_rest, detail::RowCountExchange(loader_->data_parallel().group),
          typename detail::EvenSteps<Batch>::Options{.batch_size = loader_->reading().batch_size,
                                                     .drop_last = loader_->options().drop_last,
                                                     .resumed = resumed,
                                                     .read_first_batches = read_first_batches(pass, error)});
    }
    return std::make_unique<detail::LookAhead<Batch>>(
        read(pass), typename detail::LookAhead<Batch>::Options{.resumed = resumed,
                                                               .counts_all_ranks = !loader_->reads_own_parts()});
  }

  // Exceptions of the user's dataset or sampler are kept, and rethrown where the other ranks learn about them.
  std::exception_ptr start(detail::Pass& pass) {
    std::exception_ptr error;
    try {
      if (loader_->is_prepared()) detail::set_dataset_epoch(*dataset_, *loader_);
    } catch (...) {
      error = std::current_exception();
    }
    try {
      pass.start();  // after a failure too: where rank 0 reads for all, other ranks do not need their dataset
    } catch (...) {
      if (!error) error = std::current_exception();
    }
    return error;
  }

  // Reads the rest of the pass. A resumed pass repeats its initial draws from the saved generator state.
  std::unique_ptr<Stream> read(detail::Pass& pass) const {
    if (!pass.is_resumed())
      return read_from(pass.num_to_seek(), /*draws_at_once=*/false, pass.readers(), pass.record());
    const GeneratorScope scope(generator_of_state(pass.record().random_state));
    return read_from(pass.num_to_seek(), /*draws_at_once=*/true, pass.readers(), pass.record());
  }

  detail::ReadFirstBatches<Batch> read_first_batches(detail::Pass& pass, const std::exception_ptr& error) const {
    if (error || !pass.needs_start()) return {};
    return [loader = *this, &pass](int num_batches) {
      const GeneratorScope scope(generator_of_state(pass.record().random_state));
      std::vector<Batch> batches;
      {
        const auto source = loader.read_from(0, /*draws_at_once=*/true, pass.readers_of_start(), PassRecord());
        while (static_cast<int>(batches.size()) < num_batches) {
          auto issued = source->next();
          if (!issued) break;
          batches.push_back(std::move(issued->batch));
        }
      }
      pass.restore_order();
      return batches.empty() ? std::nullopt
                             : std::optional(batches.size() == 1 ? batches.front() : concatenate(batches));
    };
  }

  std::unique_ptr<Stream> read_from(std::int64_t num_read, bool draws_at_once, detail::ReadersOptions readers,
                                    const PassRecord& record) const {
    if constexpr (MapDataset<Dataset>) {
      return read_indexed(num_read, draws_at_once, std::move(readers));
    } else if constexpr (ShardedDataset<Dataset>) {
      auto dataset = dataset_;
      if (loader_->reads_own_parts())
        dataset =
            std::make_shared<Dataset>(dataset->shard(loader_->data_parallel().size, loader_->data_parallel().rank));
      if (readers.num_workers > 1) return read_parts(*dataset, std::move(readers), record);
      return read_stream(std::move(dataset), num_read, draws_at_once, std::move(readers));
    } else {
      return read_stream(dataset_, num_read, draws_at_once, std::move(readers));
    }
  }

  std::unique_ptr<Stream> read_indexed(std::int64_t num_read, bool draws_at_once,
                                       detail::ReadersOptions readers) const {
    loader_->steps().begin_pass(num_read, draws_at_once);
    return std::make_unique<detail::IndexedBatches<Batch>>(
        loader_->steps(),
        [dataset = dataset_, collate = collate_, pins = loader_->pins_batches(),
         seed = loader_->sample_seed()](const auto& indices) {
          return detail::pinned(detail::fetch_batch(*dataset, *collate, indices, seed), pins);
        },
        std::move(readers));
  }

  // Several workers, each of which reads separate parts.
  std::unique_ptr<Stream> read_parts(Dataset& dataset, detail::ReadersOptions readers, const PassRecord& record) const {
    auto collate = collate_samples();
    using Batches = detail::ShardedStreamBatches<Dataset, decltype(collate), Batch>;
    typename Batches::Options options{.batch_size = loader_->reading().batch_size,
                                      .drop_last = loader_->reading().drop_last,
                                      .readers = std::move(readers),
                                      .num_left_over_read = record.num_left_over};
    for (const auto& reader : record.readers) options.num_samples_read.push_back(reader.num_samples);
    return std::make_unique<Batches>(dataset, std::move(collate), std::move(options));
  }

  std::unique_ptr<Stream> read_stream(std::shared_ptr<Dataset> dataset, std::int64_t num_read, bool draws_at_once,
                                      detail::ReadersOptions readers) const {
    auto collate = collate_samples();
    auto reading = loader_->reading();
    reading.num_read = num_read;
    std::unique_ptr<Stream> batches = std::make_unique<detail::IterableDatasetShard<Dataset, decltype(collate), Batch>>(
        std::move(dataset), std::move(collate), reading, loader_->reading_rank());
    if (readers.num_workers > 0)
      return std::make_unique<detail::ReadAhead<Batch>>(std::move(batches), std::move(readers));
    if (draws_at_once) batches->start();
    return batches;
  }

  auto collate_samples() const {
    return [collate = collate_, pins = loader_->pins_batches()](const auto& samples) {
      return detail::pinned(detail::collate_with(*collate, samples), pins);
    };
  }

 protected:
  std::shared_ptr<Dataset> dataset_;
  std::shared_ptr<Collate> collate_;
  std::shared_ptr<detail::Loader> loader_;
  std::shared_ptr<std::int64_t> skip_batches_ = std::make_shared<std::int64_t>(0);  // in the next pass
  std::function<Batch(const Batch&, RowRange, int)> slice_for_dispatch_;
};

template <typename Dataset>
DataLoader(Dataset) -> DataLoader<Dataset>;
template <typename Dataset>
DataLoader(Dataset, DataLoaderOptions) -> DataLoader<Dataset>;
template <typename Dataset, typename Collate>
DataLoader(Dataset, DataLoaderOptions, Collate) -> DataLoader<Dataset, Collate>;

/// A loader that yields this rank's batches on its device; created by Accelerator::prepare. Copies share one state.
template <typename Dataset, typename Collate = DefaultCollate>
class DataLoaderShard : public DataLoader<Dataset, Collate> {
 public:
  DataLoaderShard(const DataLoader<Dataset, Collate>& plain, ShardOptions shard)
      : DataLoader<Dataset, Collate>(plain, std::move(shard)) {}
  explicit DataLoaderShard(std::nullptr_t) : DataLoader<Dataset, Collate>(nullptr) {}

  DataLoaderShard& operator*() { return *this; }
  DataLoaderShard* operator->() { return this; }

  /// True if rank 0 reads for all ranks, as Accelerate's DataLoaderDispatcher.
  [[nodiscard]] bool is_dispatched() const { return this->loader_->is_dispatched(); }
  /// Number of samples of one step over all ranks.
  [[nodiscard]] std::int64_t total_batch_size() const { return this->loader_->total_batch_size(); }
  [[nodiscard]] std::int64_t total_dataset_length() const { return this->loader_->total_dataset_length(); }
  [[nodiscard]] const std::shared_ptr<detail::Loader>& loader() const { return this->loader_; }
  void set_slice_for_dispatch(std::function<typename DataLoaderShard::Batch(const typename DataLoaderShard::Batch& step,
                                                                            RowRange rows, int part)>
                                  slice) {
    this->slice_for_dispatch_ = std::move(slice);
  }
  /// Sets the epoch that seeds the shuffle of the next pass. It is incremented automatically at the end of each pass.
  void set_epoch(std::int64_t epoch) { this->loader_->set_epoch(epoch); }
  [[nodiscard]] std::int64_t iteration() const { return this->loader_->iteration(); }
};

/// Returns a handle on the same loader that omits the first `num_batches` batches of its next pass, to resume inside an
/// epoch. Both handles share the epoch and the generators: after a pass over either one, both continue with the next
/// complete epoch. Skipped samples of a map-style dataset are not read, except for the first step where rank 0 reads,
/// because it may pad the last step. A state taken before the loop does not contain the skip. `num_batches` counts the
/// batches of one rank in every mode. Throws ArgumentError if it is negative.
/// Source: accelerate/data_loader.py, skip_first_batches.
template <typename Loader>
Loader skip_first_batches(const Loader& loader, std::int64_t num_batches) {
  check_argument(num_batches >= 0, "skip_first_batches: expected 0 or more batches, got {}", num_batches);
  Loader skipping = loader;
  check_argument(num_batches <= std::numeric_limits<std::int64_t>::max() - *loader.skip_batches_,
                 "skip_first_batches: {} more batches exceed the range of int64", num_batches);
  skipping.skip_batches_ = std::make_shared<std::int64_t>(*loader.skip_batches_ + num_batches);
  return skipping;
}

}  // namespace accel
