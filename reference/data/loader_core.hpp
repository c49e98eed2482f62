#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>

#include "reference/data/loader_options.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/reading_plan.hpp"

/// What all loaders share that does not depend on the type of a sample: who reads, in which order, and the place in the
/// data between passes. Thread rule: the rank's thread.
namespace accel {

class PassCore;

/// How a pass ended.
struct PassOutcome {
  enum End { kNothingRead, kLeft, kFinished };
  End end = kNothingRead;
  bool any_batch = false;                ///< of a finished pass: it had a batch
  std::optional<BegunEpoch> place = {};  ///< where its loop was left; of a pass that read nothing: where it resumed
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
  [[nodiscard]] bool is_dispatched() const { return plan_.is_dispatched; }
  /// Every rank reads parts of a stream that are its own.
  [[nodiscard]] bool reads_own_parts() const { return plan_.reads_own_parts; }
  [[nodiscard]] const DataParallel& data_parallel() const { return shard_.data_parallel; }
  [[nodiscard]] bool even_batches() const { return shard_.config.even_batches; }
  /// From the next pass on. Does nothing where ranks cannot differ.
  void set_even_batches(bool even_batches);
  [[nodiscard]] bool reads() const { return !is_dispatched() || shard_.context->rank == 0; }
  /// Batches that rank 0 reads for one step of a dispatched loader.
  [[nodiscard]] int batches_per_step() const;
  /// Rows of every step of an elastic order, the last one too; 0 for others.
  [[nodiscard]] std::int64_t full_rows() const;
  /// How the reader's order, or its stream, is cut: for this rank alone where rank 0 reads for all, or each its own
  /// parts.
  [[nodiscard]] const ShardPlanOptions& reading() const { return plan_.cut; }
  /// The rank for which `reading` cuts.
  [[nodiscard]] int reading_rank() const { return reading().num_ranks == 1 ? 0 : shard_.data_parallel.rank; }
  [[nodiscard]] StepSource& steps() const { return *steps_; }
  /// Threads that read ahead: one alone for a stream, unless each can read parts of its own.
  [[nodiscard]] int num_readers() const;
  /// Samples, or batches of a batch sampler, that one step takes from the epoch: units of a place in it.
  [[nodiscard]] std::int64_t units_per_step() const;
  [[nodiscard]] bool moves_batches() const;
  [[nodiscard]] bool non_blocking() const { return shard_.config.non_blocking; }
  /// Completed passes; the epoch that the next pass sets in its sampler.
  [[nodiscard]] std::int64_t iteration() const { return iteration_; }
  /// Another epoch than that of a loaded place has no place yet. Throws ArgumentError if it is negative.
  void set_epoch(std::int64_t epoch);

  /// Of the open pass, or of the last one if its loop was left before its end; else of the start of the next.
  [[nodiscard]] LoaderState state() const;
  /// The next pass resumes where `state` was taken. Throws CheckpointError if it does not fit this loader; StateError
  /// inside a pass.
  void load_state(const LoaderState& state);

  // --- for PassCore ---

  /// The place where a pass that begins now resumes; nothing: at the start of the epoch. Throws StateError while
  /// another pass over this loader, or one that shares its dataset and sampler, is open.
  [[nodiscard]] std::optional<BegunEpoch> place_of_next_pass();
  /// From now on the place is that of `pass`, which stays where it is until it calls `close`.
  void open(const PassCore& pass);
  void close(PassOutcome outcome);
  /// Synchronises generators, unless an epoch is resumed, and sets the sampler's epoch.
  void begin_epoch(bool is_resumed);
  /// A place in the epoch is known by its number of steps, without reading what comes before it.
  [[nodiscard]] bool knows_places() const;
  /// The remainder of the last step of an epoch of which `num_read` units are read; nothing if it is not known before.
  [[nodiscard]] std::optional<std::int64_t> remainder_after(std::int64_t num_read) const;
  /// What the order depends on: the state of the sampler, or of a stream's generator. Null on a rank that does not
  /// read.
  [[nodiscard]] Value order() const;
  /// Throws ArgumentError if it is of another kind of order.
  void load_order(const Value& order);
  /// Draws what the sampler draws on a rank that reads, if this rank does not.
  void draw_as_reader();

 private:
  void renew_steps();
  [[nodiscard]] bool others_may_have_batches() const;
  [[nodiscard]] std::optional<std::int64_t> num_read_batches() const;
  [[nodiscard]] std::string source_name() const;

  DataSource source_;
  DataLoaderOptions options_;
  ShardOptions shard_;
  ReadingPlan plan_;
  std::shared_ptr<Sampler> sampler_;   // null for streams and batch samplers
  std::unique_ptr<StepSource> steps_;  // null for streams
  bool steps_are_old_ = false;
  std::int64_t iteration_ = 0;
  bool has_warned_ = false;  // of whole reads
  const PassCore* open_pass_ = nullptr;
  std::shared_ptr<bool> is_read_ = std::make_shared<bool>(false);  // of all loaders that share a dataset and a sampler
  std::optional<BegunEpoch> loaded_;                               // where the next pass resumes
  std::optional<BegunEpoch> left_;                                 // where the last loop was left
};

}  // namespace accel
