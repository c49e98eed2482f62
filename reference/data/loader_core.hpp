#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>
#include <vector>

#include "reference/config/options.hpp"
#include "reference/data/batch_sampler.hpp"
#include "reference/data/batch_stream.hpp"
#include "reference/data/loader_state.hpp"
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
  int num_workers =
      0;  ///< threads that read ahead; 0: the rank's own thread reads. A stream without parts has one at most
  int prefetch_factor = 2;  ///< batches that each worker reads ahead
  /// Of the shuffle and of the iterations' seeds; default: the rank's. One of its own for each loader whose place is
  /// saved.
  std::optional<at::Generator> generator = {};
  std::shared_ptr<Sampler> sampler = {};             ///< excludes shuffle
  std::shared_ptr<BatchSampler> batch_sampler = {};  ///< excludes batch_size, shuffle, drop_last and sampler
};

/// What a loader reads from.
struct DataSource {
  bool is_stream = false;                       ///< an iterable dataset: no index
  std::int64_t num_shards = 0;                  ///< parts of a stream that can be read apart; 0: it has none
  std::optional<std::int64_t> size = {};        ///< number of samples; a stream may not know it
  std::optional<at::Generator> generator = {};  ///< of a stream that has one: takes rank 0's state before each pass
};

/// The ranks that read different samples: all of the world, unless a mesh has several ranks share one batch.
struct DataParallel {
  int size = 1, rank = 0;
  Group group = {};  ///< of one rank for each batch of a step, in order
};

/// How a loader is sharded; made by Accelerator::prepare.
struct ShardOptions {
  RankContext* context = nullptr;
  DataParallel data_parallel = {};
  DataLoaderConfiguration config = {};
  std::vector<std::string> rng_types = {"generator"};
  bool put_on_device = true;
};

class LoaderCore {
 public:
  /// A plain loader. Throws ArgumentError with all problems of the options.
  LoaderCore(DataSource source, DataLoaderOptions options);
  /// The same loader, sharded for one rank. Draws what Accelerate's prepare draws: one int64 of the default generator
  /// for a random sampler without a generator among several ranks (unless seedable or dispatched), else nothing.
  /// Collective for a seedable sampler without data_seed: its seed is rank 0's.
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
  /// Once, if this loader was not prepared and several ranks that train a prepared model read all of it. `where`: of
  /// the loop.
  void warn_of_whole_reads(std::source_location where);
  /// Rank 0 reads, and each rank gets its part of what it has read.
  [[nodiscard]] bool is_dispatched() const { return is_dispatched_; }
  /// Every rank reads parts of a stream that are its own.
  [[nodiscard]] bool reads_own_parts() const { return reads_own_parts_; }
  [[nodiscard]] const DataParallel& data_parallel() const { return shard_.data_parallel; }
  [[nodiscard]] bool even_batches() const { return shard_.config.even_batches; }
  /// From the next pass on. Does nothing where ranks cannot differ.
  void set_even_batches(bool even_batches);
  [[nodiscard]] bool reads() const { return !is_dispatched_ || shard_.context->rank == 0; }
  /// Batches that rank 0 reads for one step of a dispatched loader.
  [[nodiscard]] int batches_per_step() const;
  /// Rows of every step of an elastic order, the last one too; 0 for others.
  [[nodiscard]] std::int64_t full_rows() const;
  /// How the reader's order, or its stream, is cut: for this rank alone where rank 0 reads for all, or each its own
  /// parts.
  [[nodiscard]] const ShardPlanOptions& reading() const { return reading_; }
  /// The rank for which `reading` cuts.
  [[nodiscard]] int reading_rank() const { return reading_.num_ranks == 1 ? 0 : shard_.data_parallel.rank; }
  [[nodiscard]] StepSource& steps() const { return *steps_; }
  /// Threads that read ahead: one alone for a stream, unless each can read parts of its own.
  [[nodiscard]] int num_readers() const { return num_readers(options_.num_workers, shard_.data_parallel.rank); }
  /// Samples, or batches of a batch sampler, that one step takes from the epoch: units of a place in it.
  [[nodiscard]] std::int64_t units_per_step() const;
  [[nodiscard]] bool moves_batches() const;
  [[nodiscard]] bool non_blocking() const { return shard_.config.non_blocking; }
  /// Completed passes; the epoch that the next pass tells its sampler.
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }
  /// Another epoch than that of a loaded place has no place yet. Throws ArgumentError if it is negative.
  void set_epoch(std::int64_t epoch);

  /// Of the open pass, or of the last one if its loop was left before its end; else of the start of the next.
  [[nodiscard]] LoaderState state() const;
  /// The next pass goes on where `state` was taken. Throws CheckpointError if it does not fit this loader; StateError
  /// inside a pass.
  void load_state(const LoaderState& state);

  /// One pass over the loader. While it lives, a prepared loader is the rank's active one; leaving the loop early, by
  /// break, return or exception, takes it off again.
  class Pass {
   public:
    /// Synchronises generators, and tells the epoch. Throws StateError if another pass is open: the two would share one
    /// place.
    Pass(LoaderCore& core, std::int64_t skip_batches);
    ~Pass();
    Pass(const Pass&) = delete;
    Pass& operator=(const Pass&) = delete;

    /// Draws the seed of this pass's workers: worker w has a generator seeded with it plus w. A pass that goes on draws
    /// nothing: its seed and order are those with which it began.
    void start();
    [[nodiscard]] bool is_resumed() const { return taken_.has_value(); }
    /// Units of the epoch behind which reading begins.
    [[nodiscard]] std::int64_t position() const { return position_; }
    /// Steps to pass over by reading them, where a place in a stream is not known beforehand.
    [[nodiscard]] std::int64_t num_to_discard() const { return num_to_discard_; }
    [[nodiscard]] bool begins_inside() const { return state_.num_read > 0; }
    /// The end of the pass may be filled up by its start, which is behind already.
    [[nodiscard]] bool needs_start() const;
    [[nodiscard]] const PassState& state() const { return state_; }
    /// The sampler as it was when the pass began.
    void restore_order();
    /// The threads that read ahead, going on where they were.
    detail::ReadersOptions readers();
    /// The same as the pass began, to read its start again.
    [[nodiscard]] detail::ReadersOptions readers_of_start() const;
    /// A batch is about to be handed out.
    template <typename Batch>
    void hand_out(const detail::Issued<Batch>& issued) {
      has_handed_out_ = true;
      state_.num_read += core_.units_per_step();
      count(issued.marks);
      active_.num_rows = issued.num_rows;
      if (core_.is_prepared()) active_.batch = ++core_.shard_.context->gradient_state.num_batches;
      active_.real_rows = issued.real_rows;
      if (issued.is_last) mark_end(issued.remainder);
    }
    /// The pass has been read to its end: counts it and takes the loader off.
    void finish(bool any_batch);
    /// What has been read by whom.
    void count(const std::vector<detail::ReaderMark>& marks);

   private:
    void begin();
    void mark_end(std::int64_t remainder);
    void close();
    friend class LoaderCore;

    LoaderCore& core_;
    bool is_open_ = true, has_handed_out_ = false;
    std::optional<LoaderState> taken_;  // with which it goes on
    PassState state_;
    std::int64_t position_ = 0, num_to_discard_ = 0;
    Value order_;  // at the start of the pass
    ActiveLoader active_;
  };

 private:
  [[nodiscard]] int num_readers(std::int64_t num_workers, int rank) const;
  void synchronize_rng();
  void renew_steps();
  [[nodiscard]] bool others_may_have_batches() const;
  [[nodiscard]] std::optional<std::int64_t> num_read_batches() const;
  [[nodiscard]] Value order() const;
  void load_order(const Value& order);
  [[nodiscard]] std::string source_name() const;

  DataSource source_;
  DataLoaderOptions options_;
  ShardOptions shard_;
  bool is_dispatched_ = false, reads_own_parts_ = false;
  std::shared_ptr<Sampler> sampler_;  // null for streams and batch samplers
  ShardPlanOptions reading_;
  std::unique_ptr<StepSource> steps_;  // null for streams
  std::int64_t iteration_ = 0;
  bool has_warned_ = false;  // of whole reads
  const Pass* open_pass_ = nullptr;
  std::shared_ptr<bool> is_read_ = std::make_shared<bool>(false);  // of all loaders that share a dataset and a sampler
  std::optional<LoaderState> loaded_;                              // of a pass that is not begun again yet
  std::optional<LoaderState> left_;                                // of a pass whose loop was left
  bool steps_are_old_ = false;
};

}  // namespace accel
