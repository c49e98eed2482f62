#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <source_location>
#include <string>

#include "reference/core/device.hpp"
#include "reference/data/loader_options.hpp"
#include "reference/data/loader_position.hpp"
#include "reference/data/loader_state.hpp"
#include "reference/data/reading_plan.hpp"
#include "reference/data/workers.hpp"

namespace accel::detail {

class Pass;

/// What a DataLoader keeps from one pass to the next: options, properties of the dataset, sampler, which ranks read
/// what, epoch, saved state and workers. While a loop runs, its Pass has the position, which the loader takes over when
/// the pass is closed. Does not depend on the type of a sample. Thread rule: the rank's thread.
class Loader {
 public:
  /// Creates a plain loader. Throws ArgumentError that lists all problems of the options.
  Loader(DataSource source, DataLoaderOptions options);
  /// Shards a plain loader for one rank. Draws as Accelerate's prepare does: one int64 from the default generator for a
  /// random sampler without a generator if there are several ranks (unless seedable or dispatched), otherwise nothing.
  /// Collective for a seedable sampler without data_seed, which uses the seed of rank 0.
  Loader(const Loader& plain, ShardOptions shard);

  /// Number of steps of this rank; nullopt if unknown.
  [[nodiscard]] std::optional<std::int64_t> size() const;
  /// Number of samples of one step over all ranks. Throws StateError if the batches of a batch sampler vary.
  [[nodiscard]] std::int64_t total_batch_size() const;
  /// Samples of a full batch of this rank; nullopt if batches vary.
  [[nodiscard]] std::optional<std::int64_t> batch_size_of_rank() const;
  /// Throws StateError for a stream of unknown length.
  [[nodiscard]] std::int64_t total_dataset_length() const;
  [[nodiscard]] const DataLoaderOptions& options() const { return options_; }
  [[nodiscard]] bool is_prepared() const { return shard_.context != nullptr; }
  [[nodiscard]] RankContext& context() const { return *shard_.context; }
  /// Warns once if this loader was not prepared and several ranks that train a prepared model read all of it. `where`
  /// is the location of the loop.
  void warn_about_unsharded_reads(std::source_location where);
  /// True if rank 0 reads and sends each rank its part.
  [[nodiscard]] bool is_dispatched() const { return plan_.is_dispatched; }
  [[nodiscard]] bool is_stream() const { return source_.is_stream; }
  [[nodiscard]] ProgramObserver::LoaderFacts facts() const;
  /// True while a pass is open.
  [[nodiscard]] bool is_being_read() const { return open_pass() != nullptr; }
  /// True if every rank reads separate parts of a stream.
  [[nodiscard]] bool reads_own_parts() const { return plan_.reads_own_parts; }
  /// True if ranks that read separate parts agree on every step, so that all get the same number of steps.
  [[nodiscard]] bool evens_steps() const { return reads_own_parts() && even_batches(); }
  [[nodiscard]] const DataParallel& data_parallel() const { return shard_.data_parallel; }
  [[nodiscard]] bool even_batches() const { return shard_.config.even_batches; }
  /// Takes effect from the next pass on. Does nothing for loaders whose ranks always have equal numbers of batches.
  void set_even_batches(bool even_batches);
  /// The ranks have changed: the next pass divides the samples among the present ones. Throws StateError inside a pass.
  void divide_anew(const DataParallel& data_parallel);
  [[nodiscard]] bool reads() const { return !is_dispatched() || shard_.context->rank == 0; }
  /// Number of batches that rank 0 reads for one step of a dispatched loader.
  [[nodiscard]] int batches_per_step() const;
  /// Number of rows of every step of an elastic order, including the last one; 0 for other orders.
  [[nodiscard]] std::int64_t full_rows() const;
  /// How the reader's order or stream is divided. Describes a single rank where rank 0 reads for all or where every
  /// rank reads separate parts.
  [[nodiscard]] const ShardPlanOptions& reading() const { return plan_.cut; }
  /// The rank index to use with `reading`.
  [[nodiscard]] int reading_rank() const { return reading().num_ranks == 1 ? 0 : shard_.data_parallel.rank; }
  [[nodiscard]] StepSource& steps() const { return *steps_; }
  /// Number of prefetching threads: at most one for a stream, unless each thread can read separate parts.
  [[nodiscard]] int num_readers() const;
  /// Number of units per step over all ranks. A unit is a sample, or a batch of a batch sampler.
  [[nodiscard]] std::int64_t units_per_step() const;
  /// True if batches are copied to pinned memory where they are read.
  [[nodiscard]] bool pins_batches() const;
  /// See RankContext.
  [[nodiscard]] std::optional<std::uint64_t> sample_seed() const;
  /// The epoch of the open pass, or of the next one: the number of completed passes, unless it was set.
  [[nodiscard]] std::int64_t iteration() const { return position().epoch(); }
  /// True if every rank reads separate parts and none knows how many batches the others get.
  [[nodiscard]] bool ranks_are_independent() const {
    return reads_own_parts() && !even_batches() && shard_.data_parallel.size > 1;
  }
  /// Sets the epoch of the next pass. Discards a loaded position that belongs to another epoch. Throws ArgumentError if
  /// the epoch is negative.
  void set_epoch(std::int64_t epoch);

  /// Returns the state of the open pass, or of the last pass if its loop was left early; otherwise of the next start.
  [[nodiscard]] LoaderState state() const;
  /// Makes the next pass resume at `state`, as far as this rank knows. Throws CheckpointError if the state does not
  /// match this loader; StateError inside a pass.
  void load_state(const LoaderState& state);
  /// Compares the loaded positions of all ranks, if they are independent. Collective then, and a no-op otherwise. Every
  /// rank throws CheckpointError if `is_loaded` is false on one of them.
  void agree_on_position(bool is_loaded = true);
  /// Both of the above; if one rank fails, all ranks throw and their loaders remain unchanged.
  void load_state_dict(const Value& state);

 private:
  friend class Pass;

  // --- of a pass ---
  [[nodiscard]] Pass* open_pass() const;
  [[nodiscard]] const LoaderPosition& position() const;
  // Returns the pass that the next one continues; nullopt: it starts an epoch. Throws StateError while a pass over this
  // loader, or over one that shares its dataset and sampler, is open.
  [[nodiscard]] std::optional<SavedPass> next_pass();
  // Takes over the position of a pass that is closed. `left`: what it has read, if its place replaces a loaded one.
  void close_pass(const LoaderPosition& position, std::optional<SavedPass> left);
  // Synchronizes generators, unless an epoch is resumed, and sets the sampler's epoch.
  void begin_epoch(bool is_resumed);
  // True if a position is determined by its number of steps, without reading the samples before it.
  [[nodiscard]] bool can_seek() const;
  // Returns the remainder of the last step after `num_read` units; nullopt if it is not known in advance.
  [[nodiscard]] std::optional<std::int64_t> remainder_after(std::int64_t num_read) const;
  [[nodiscard]] LastStep last_step() const;
  [[nodiscard]] bool other_ranks_may_have_batches() const;

  // --- order ---
  // Returns the state that determines the order: that of the sampler or of a stream's generator. Null on a rank that
  // does not read.
  [[nodiscard]] Value order() const;
  // Throws ArgumentError if the state belongs to another kind of order.
  void load_order(const Value& order);
  // On a rank that does not read, draws what the sampler draws on a reading rank.
  void draw_as_reader();
  void renew_steps();

  // --- workers ---
  // Random numbers with which persistent workers continue; nullopt: a pass draws a seed for its workers.
  [[nodiscard]] std::optional<WorkersState> workers_state() const;
  // Remembers the seed of persistent workers.
  void keep_seed(std::int64_t base_seed);
  void finish_workers();
  // Keeps persistent workers and ends the others. `by_exception`: an exception has left the loop.
  void release_workers(bool by_exception);

  // --- device ---
  [[nodiscard]] bool moves_batches() const;
  // Starts to copy a tensor of a batch to the rank's device: from pinned memory and beside computation, so that neither
  // the host nor the device waits. The result is used after `finish_moves`.
  [[nodiscard]] at::Tensor begin_move(const at::Tensor& tensor);
  void finish_moves() const;

  void warn_of_unused_options() const;
  [[nodiscard]] std::optional<std::int64_t> num_read_batches() const;
  [[nodiscard]] std::string source_name() const;

  DataSource source_;
  DataLoaderOptions options_;
  ShardOptions shard_;
  ReadingPlan plan_;
  std::shared_ptr<Sampler> sampler_;   // null for streams and batch samplers
  std::unique_ptr<StepSource> steps_;  // null for streams
  bool steps_outdated_ = false;
  bool has_warned_ = false;  // by warn_about_unsharded_reads
  std::optional<SideStream> copies_;
  // The only open pass over the dataset and the sampler, of this loader or of another one; shared by all of them.
  std::shared_ptr<Pass*> open_pass_ = std::make_shared<Pass*>(nullptr);
  LoaderPosition position_;                    // between passes, see Note [Position of a loader]
  std::optional<SavedPass> saved_pass_;        // see Note [Position of a loader]
  std::shared_ptr<Workers> workers_;           // of the open pass; later, persistent ones and those still at work
  std::optional<WorkersState> workers_state_;  // their seed, and generators that were loaded
};

}  // namespace accel::detail
