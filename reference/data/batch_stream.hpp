#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/samplers/batch_sampler.hpp"
#include "reference/data/workers.hpp"
#include "reference/rank_local/random.hpp"

/// Streams of the batches of one pass. A loader is a stack of these streams, from the dataset up to the loop.
namespace accel::detail {

constexpr int kRankThread = -1;
constexpr int kLeftOver = -2;

/// Records who read a batch and the generator state from which the rest of the pass is read: a worker's state after the
/// batch, or the state of the rank's own generator before it read ahead.
struct ReaderMark {
  int reader = kRankThread;  ///< a worker's number, kRankThread, or kLeftOver: samples left over at the workers' ends
  std::int64_t num_samples = 0;
  at::Tensor generator = {};
};

/// What a pass records of a batch that it hands out, whatever the batch's type.
struct BatchRecord {
  std::int64_t num_rows = 0;   ///< samples of this rank, duplicates included
  std::int64_t remainder = 0;  ///< samples of the step over all ranks that are not duplicates; 0: a full step
  bool is_last = false;        ///< valid only for the output of LookAhead, DispatchedBatches and EvenSteps
  std::vector<ReaderMark> marks = {};
  /// Non-duplicate rows per rank, if the duplicates are not all at the end of the step; otherwise empty.
  std::vector<std::int64_t> real_rows = {};

  // --- only if the pass is observed ---
  std::vector<std::int64_t> indices = {};  ///< of the samples in the dataset; empty if they are unknown
  at::Tensor drawn_from = {};              ///< see ProgramObserver::ReadBatch
};

template <typename Batch>
struct LoadedBatch : BatchRecord {
  Batch batch = {};
};

template <typename Batch>
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Opens the source and skips what was read before. Runs on the reading thread; `next` calls it if nobody did.
  virtual void start() {}
  virtual std::optional<LoadedBatch<Batch>> next() = 0;
};

/// The batches of a pass, whatever their type: the stream at the top of the stack, with the batch that it read last.
class PassBatches {
 public:
  virtual ~PassBatches() = default;
  /// Reads the next batch. Returns null after the last one.
  virtual const BatchRecord* next() = 0;
  /// Replaces the tensors of the batch.
  virtual void map(const std::function<at::Tensor(const at::Tensor&)>& change) = 0;
};

template <typename Batch>
class NoBatches : public BatchStream<Batch> {
 public:
  std::optional<LoadedBatch<Batch>> next() override { return std::nullopt; }
};

/// Reads the first batches of a pass again, separately, as they were when the pass began: they pad its end.
template <typename Batch>
using ReadFirstBatches = std::function<std::optional<Batch>(int num_batches)>;

/// The threads that prefetch a pass.
struct ReadersOptions {
  int num_workers = 0, prefetch_factor = 2;
  std::uint64_t base_seed = 0;  ///< the generator of worker w is seeded with base_seed + w
  /// States of the workers' generators at the start of the pass; empty: as seeded, after worker_init_fn.
  std::vector<at::Tensor> starts = {};
  /// States of the workers' generators in a resumed pass; undefined for a worker that begins at its start.
  std::vector<at::Tensor> generators = {};
  int next = 0;  ///< the worker that reads first
  Workers::Options workers = {};
  /// The loader's workers, to which those of the pass are added; null: the stream has them alone.
  std::shared_ptr<Workers>* kept = nullptr;
  bool persistent = false;   ///< kept workers of an earlier pass continue
  bool is_observed = false;  ///< batches are handed to a ProgramObserver
};

/// Returns the workers of a pass. `resumed`: they continue with `generators`, otherwise they begin with `starts`.
std::shared_ptr<Workers> start_workers(int num_workers, const ReadersOptions& options, bool resumed);

/// The result of a task, and the worker that runs it.
template <typename Result>
struct Pending {
  int worker = 0;
  std::future<Result> future = {};
};

/// Batches of a map-style dataset: fetches the samples of each step, on this thread or on workers, in order.
template <typename Batch>
class IndexedBatches : public BatchStream<Batch> {
 public:
  using Fetch = std::function<Batch(const std::vector<std::int64_t>&)>;

  IndexedBatches(StepSource& steps, Fetch fetch, ReadersOptions options)
      : steps_(steps),
        fetch_(std::make_shared<const Fetch>(std::move(fetch))),
        options_(std::move(options)),
        next_worker_(options_.next) {}

  std::optional<LoadedBatch<Batch>> next() override {
    if (options_.num_workers == 0) {
      auto step = steps_.next();
      if (!step) return std::nullopt;
      return fetched(*fetch_, *step, options_.is_observed);
    }
    if (!workers_) start_workers();
    if (ahead_.empty()) return std::nullopt;
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return workers_->result(ready.future, ready.worker);
  }

 private:
  static LoadedBatch<Batch> fetched(const Fetch& fetch, const Step& step, bool is_observed) {
    const auto before = is_observed ? default_generator().get_state() : at::Tensor();
    LoadedBatch<Batch> loaded{{.num_rows = static_cast<std::int64_t>(step.indices.size()), .remainder = step.remainder},
                              fetch(step.indices)};
    if (!is_observed) return loaded;
    loaded.indices = step.indices;
    if (!has_state(default_generator(), before)) loaded.drawn_from = before;
    return loaded;
  }

  void start_workers() {
    workers_ = detail::start_workers(options_.num_workers, options_, /*resumed=*/true);
    for (int batch = 0; batch < options_.num_workers * options_.prefetch_factor; ++batch) read_ahead();
  }

  void read_ahead() {
    auto step = steps_.next();
    if (!step) return;
    const auto worker = std::exchange(next_worker_, (next_worker_ + 1) % options_.num_workers);
    const auto is_observed = options_.is_observed;
    auto future = workers_->submit(worker, [fetch = fetch_, worker, is_observed, step = std::move(*step)] {
      auto issued = fetched(*fetch, step, is_observed);
      issued.marks = {{.reader = worker, .num_samples = issued.num_rows, .generator = default_generator().get_state()}};
      return issued;
    });
    ahead_.push_back({.worker = worker, .future = std::move(future)});
  }

  StepSource& steps_;
  std::shared_ptr<const Fetch> fetch_;  // shared with tasks, which a time-out leaves behind
  ReadersOptions options_;
  int next_worker_;
  std::deque<Pending<LoadedBatch<Batch>>> ahead_;
  std::shared_ptr<Workers> workers_;
};

/// Prefetches another stream on one separate thread.
template <typename Batch>
class ReadAhead : public BatchStream<Batch> {
 public:
  ReadAhead(std::unique_ptr<BatchStream<Batch>> source, ReadersOptions options)
      : source_(std::make_shared<Source>(Source{.batches = std::move(source)})), options_(std::move(options)) {
    if (!options_.generators.empty()) source_->resumed = options_.generators.front();
  }

  std::optional<LoadedBatch<Batch>> next() override {
    if (!reader_) start_reader();
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return reader_->result(ready, /*worker=*/0);
  }

 private:
  // Used only on the reader's thread. Shared with tasks, which a time-out leaves behind.
  struct Source {
    std::unique_ptr<BatchStream<Batch>> batches;
    at::Tensor resumed = {};
    bool started = false;
  };

  // Skipped samples are read as in the original pass, so the generator begins at its start, not at the saved state.
  void start_reader() {
    reader_ = start_workers(1, options_, /*resumed=*/false);
    for (int batch = 0; batch < options_.num_workers * options_.prefetch_factor; ++batch) read_ahead();
  }

  void read_ahead() {
    ahead_.push_back(reader_->submit(/*worker=*/0, [source = source_] {
      if (!std::exchange(source->started, true)) {
        source->batches->start();
        if (source->resumed.defined()) default_generator().set_state(source->resumed);
      }
      auto issued = source->batches->next();
      if (issued)
        issued->marks = {{.reader = 0, .num_samples = issued->num_rows, .generator = default_generator().get_state()}};
      return issued;
    }));
  }

  std::shared_ptr<Source> source_;
  ReadersOptions options_;
  std::deque<std::future<std::optional<LoadedBatch<Batch>>>> ahead_;
  std::shared_ptr<Workers> reader_;
};

/// Reads ahead on the rank's own thread. Records the generator state before each read, and repeats the first read from
/// a recorded state when a pass is resumed.
class RankReader {
 public:
  /// `resumed`: the generator state for the first read; undefined: the rank's generator is used unchanged.
  explicit RankReader(at::Tensor resumed) : resumed_(std::move(resumed)) {}

  template <typename Read>
  auto operator()(Read&& read) {
    if (auto resumed = std::exchange(resumed_, {}); resumed.defined()) {
      before_ = resumed;
      const GeneratorScope scope(generator_of_state(resumed));
      return read();
    }
    before_ = default_generator().get_state();
    return read();
  }
  /// Returns the mark of the last read.
  [[nodiscard]] ReaderMark mark() const { return {.generator = before_}; }

 private:
  at::Tensor resumed_, before_;
};

/// Reads one batch ahead, so that the last batch can be marked as such.
template <typename Batch>
class LookAhead : public BatchStream<Batch> {
 public:
  struct Options {
    at::Tensor resumed = {};       ///< see RankReader
    bool counts_all_ranks = true;  ///< if false, the source's remainder counts this rank only and is dropped
  };
  LookAhead(std::unique_ptr<BatchStream<Batch>> source, Options options)
      : source_(std::move(source)), reader_(std::move(options.resumed)), knows_other_ranks_(options.counts_all_ranks) {}

  std::optional<LoadedBatch<Batch>> next() override {
    if (!std::exchange(started_, true)) read();
    auto current = std::exchange(ahead_, std::nullopt);
    if (!current) return std::nullopt;
    read();
    current->is_last = !ahead_;
    if (!knows_other_ranks_) current->remainder = 0;
    current->marks.push_back(reader_.mark());
    return current;
  }

 private:
  void read() {
    ahead_ = reader_([&] { return source_->next(); });
  }

  std::unique_ptr<BatchStream<Batch>> source_;
  RankReader reader_;
  bool knows_other_ranks_, started_ = false;
  std::optional<LoadedBatch<Batch>> ahead_;
};

}  // namespace accel::detail
