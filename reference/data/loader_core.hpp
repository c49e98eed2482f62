#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/data/batch_sampler.hpp"
#include "reference/data/sampler.hpp"
#include "reference/data/shard_plan.hpp"
#include "reference/state/rank_context.hpp"

/// What all loaders share that does not depend on the type of a sample: who reads, in which order, the draws of an
/// iteration, and what it tells the rank. Thread rule: the rank's thread.
namespace accel {

/// Arguments of a DataLoader; names and defaults are torch.utils.data.DataLoader's.
struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  bool shuffle = false;
  bool drop_last = false;
  int num_workers = 0;      ///< threads that read ahead; 0: the rank's own thread reads. A stream has one reader at most
  int prefetch_factor = 2;  ///< batches that each worker reads ahead
  std::optional<at::Generator> generator;  ///< of the shuffle and of the iterations' seeds; default: the rank's
  std::shared_ptr<Sampler> sampler;        ///< excludes shuffle
  std::shared_ptr<BatchSampler> batch_sampler;  ///< excludes batch_size, shuffle, drop_last and sampler
};

/// What a loader reads from.
struct DataSource {
  bool is_stream = false;            ///< an iterable dataset: no index, one reader
  std::optional<std::int64_t> size;  ///< number of samples; a stream may not know it
  std::optional<at::Generator> generator;  ///< of a stream that has one: takes rank 0's state before each pass
};

/// How a loader is sharded; made by Accelerator::prepare.
struct ShardOptions {
  RankContext* context = nullptr;
  DataLoaderConfiguration config;
  std::vector<std::string> rng_types = {"generator"};
  bool put_on_device = true;
};

class LoaderCore {
 public:
  /// A plain loader. Throws ArgumentError with all problems of the options.
  LoaderCore(DataSource source, DataLoaderOptions options);
  /// The same loader, sharded for one rank. Draws what Accelerate's prepare draws: one int64 of the default generator for
  /// a random sampler without a generator among several ranks (unless seedable or dispatched), else nothing. Collective
  /// for a seedable sampler without data_seed: its seed is rank 0's.
  LoaderCore(const LoaderCore& plain, ShardOptions shard);

  /// Number of steps of this rank; nothing if it is not known.
  [[nodiscard]] std::optional<std::int64_t> size() const;
  /// Samples of one step over all ranks. Throws StateError where a batch sampler's batches vary.
  [[nodiscard]] std::int64_t total_batch_size() const;
  /// Throws StateError for a stream that does not know it.
  [[nodiscard]] std::int64_t total_dataset_length() const;
  [[nodiscard]] const DataLoaderOptions& options() const { return options_; }
  [[nodiscard]] bool is_prepared() const { return shard_.context != nullptr; }
  [[nodiscard]] RankContext& context() const { return *shard_.context; }
  /// Rank 0 reads, and each rank gets its part of what it has read.
  [[nodiscard]] bool is_dispatched() const { return is_dispatched_; }
  [[nodiscard]] bool reads() const { return !is_dispatched_ || shard_.context->rank == 0; }
  /// Batches that rank 0 reads for one step of a dispatched loader.
  [[nodiscard]] int batches_per_step() const;
  /// How the reader's order, or its stream, is cut: for this rank alone where rank 0 reads for all.
  [[nodiscard]] const ShardPlanOptions& reading() const { return reading_; }
  /// The rank for which `reading` cuts.
  [[nodiscard]] int reading_rank() const { return reading_.num_ranks == 1 ? 0 : shard_.context->rank; }
  [[nodiscard]] StepSource& steps() const { return *steps_; }
  [[nodiscard]] bool moves_batches() const;
  [[nodiscard]] bool non_blocking() const { return shard_.config.non_blocking; }
  /// Completed passes; the epoch that the next pass tells its sampler.
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }
  void set_epoch(std::int64_t epoch) { iteration_ = epoch; }

  /// One pass over the loader. While it lives, a prepared loader is the rank's active one; leaving the loop early, by
  /// break, return or exception, takes it off again.
  class Pass {
   public:
    /// Synchronises generators, and tells the epoch. Throws StateError if another pass is open: the two would share one place.
    explicit Pass(LoaderCore& core);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// Draws the seed of this pass's workers: worker w has a generator seeded with it plus w.
    std::uint64_t start();
    /// The last batch is about to be handed out.
    void mark_end(std::int64_t remainder, std::optional<std::int64_t> num_rows);
    /// The pass has been read to its end: counts it and takes the loader off.
    void finish(bool any_batch);

   private:
    void begin();
    void close();

    LoaderCore& core_;
    bool is_open_ = true;
    ActiveLoader active_;
  };

 private:
  void synchronize_rng();
  [[nodiscard]] std::optional<std::int64_t> num_read_batches() const;

  DataSource source_;
  DataLoaderOptions options_;
  ShardOptions shard_;
  bool is_dispatched_ = false;
  std::shared_ptr<Sampler> sampler_;  // null for streams and batch samplers
  std::optional<at::Generator> synchronized_generator_;
  ShardPlanOptions reading_;
  std::unique_ptr<StepSource> steps_;  // null for streams
  std::int64_t iteration_ = 0;
  bool has_open_pass_ = false;
};

}  // namespace accel
