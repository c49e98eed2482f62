#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/core/random.hpp"
#include "reference/data/samplers/batch_sampler.hpp"
#include "reference/data/workers.hpp"

/// The batches of one pass, from whatever they are read; loaders are made by putting these one over the other.
namespace accel::detail {

constexpr int kRankThread = -1;
constexpr int kLeftOver = -2;

/// Who has read a batch, and the state of its generator from which it reads what is not handed out yet: a worker's
/// behind the batch; the rank's own before it read ahead.
struct ReaderMark {
  int reader = kRankThread;  ///< or the number of a worker, or kLeftOver: of what the workers' ends have left over
  std::int64_t num_samples = 0;
  at::Tensor generator = {};
};

template <typename Batch>
struct Issued {
  Batch batch = {};
  std::int64_t num_rows = 0;   ///< samples of this rank, duplicates included
  std::int64_t remainder = 0;  ///< samples of the step over all ranks that are no duplicates; 0: the step is a full one
  bool is_last = false;        ///< known only above LookAhead, DispatchedBatches and EvenSteps
  std::vector<ReaderMark> marks = {};
  std::vector<std::int64_t> real_rows = {};  ///< per rank, where duplicates do not all come last; else empty
};

template <typename Batch>
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  /// Opens what is read, and passes over what has been read before. By whoever reads; `next` does it otherwise.
  virtual void start() {}
  virtual std::optional<Issued<Batch>> next() = 0;
};

/// Reads the first batches of a pass apart, as they were read when it began: they fill up its end.
template <typename Batch>
using ReadStart = std::function<std::optional<Batch>(int num_batches)>;

/// The threads that read a pass ahead.
struct ReadersOptions {
  int num_workers = 0, prefetch_factor = 2;
  std::uint64_t base_seed = 0;  ///< worker w draws from a generator seeded with it plus w
  std::vector<at::Tensor> generators =
      {};        ///< of a pass that is resumed: the workers' states, undefined where its seed counts
  int next = 0;  ///< the worker that reads first
};

inline std::unique_ptr<Workers> make_workers(int num_workers, const ReadersOptions& options) {
  std::vector<at::Generator> generators;
  for (int worker = 0; worker < num_workers; ++worker) {
    const bool resumes = worker < static_cast<int>(options.generators.size()) && options.generators[worker].defined();
    generators.push_back(resumes ? generator_of_state(options.generators[worker])
                                 : make_generator(options.base_seed + static_cast<std::uint64_t>(worker)));
  }
  return std::make_unique<Workers>(std::move(generators), options.next);
}

/// Batches of a map-style dataset: the steps' indices, fetched here or by workers, in order.
template <typename Batch>
class IndexedBatches : public BatchStream<Batch> {
 public:
  using Fetch = std::function<Batch(const std::vector<std::int64_t>&)>;

  IndexedBatches(StepSource& steps, Fetch fetch, ReadersOptions options)
      : steps_(steps), fetch_(std::move(fetch)), options_(std::move(options)), next_worker_(options_.next) {}

  std::optional<Issued<Batch>> next() override {
    if (options_.num_workers == 0) {
      auto step = steps_.next();
      if (!step) return std::nullopt;
      return fetched(*step);
    }
    if (!workers_) start_workers();
    if (ahead_.empty()) return std::nullopt;
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return ready.get();
  }

 private:
  Issued<Batch> fetched(const Step& step) const {
    return {.batch = fetch_(step.indices),
            .num_rows = static_cast<std::int64_t>(step.indices.size()),
            .remainder = step.remainder};
  }

  void start_workers() {
    workers_ = make_workers(options_.num_workers, options_);
    for (int batch = 0; batch < options_.num_workers * options_.prefetch_factor; ++batch) read_ahead();
  }

  void read_ahead() {
    auto step = steps_.next();
    if (!step) return;
    auto task = std::make_shared<std::packaged_task<Issued<Batch>()>>([this, worker = next_worker_,
                                                                       step = std::move(*step)] {
      auto issued = fetched(step);
      issued.marks = {{.reader = worker, .num_samples = issued.num_rows, .generator = default_generator().get_state()}};
      return issued;
    });
    next_worker_ = (next_worker_ + 1) % options_.num_workers;
    ahead_.push_back(task->get_future());
    workers_->submit([task] { (*task)(); });
  }

  StepSource& steps_;
  Fetch fetch_;
  ReadersOptions options_;
  int next_worker_;
  std::deque<std::future<Issued<Batch>>> ahead_;
  std::unique_ptr<Workers> workers_;  // ends before what its tasks use
};

/// Another stream, read by one thread of its own some batches ahead.
template <typename Batch>
class ReadAhead : public BatchStream<Batch> {
 public:
  ReadAhead(std::unique_ptr<BatchStream<Batch>> source, ReadersOptions options)
      : source_(std::move(source)), options_(std::move(options)) {}

  std::optional<Issued<Batch>> next() override {
    if (!reader_) start_reader();
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return ready.get();
  }

 private:
  // What is passed over is read as it was the first time: from the seed.
  void start_reader() {
    reader_ = make_workers(1, {.base_seed = options_.base_seed});
    for (int batch = 0; batch < options_.num_workers * options_.prefetch_factor; ++batch) read_ahead();
  }

  void read_ahead() {
    auto task = std::make_shared<std::packaged_task<std::optional<Issued<Batch>>()>>([this] {
      if (!std::exchange(started_, true)) {
        source_->start();
        if (!options_.generators.empty() && options_.generators.front().defined())
          default_generator().set_state(options_.generators.front());
      }
      auto issued = source_->next();
      if (issued)
        issued->marks = {{.reader = 0, .num_samples = issued->num_rows, .generator = default_generator().get_state()}};
      return issued;
    });
    ahead_.push_back(task->get_future());
    reader_->submit([task] { (*task)(); });
  }

  std::unique_ptr<BatchStream<Batch>> source_;
  ReadersOptions options_;
  bool started_ = false;  // the reader's
  std::deque<std::future<std::optional<Issued<Batch>>>> ahead_;
  std::unique_ptr<Workers> reader_;  // ends before what its tasks use
};

/// Reads on the rank's own thread, ahead of what is handed out: says from which state of its generator it did so, and
/// reads the same again where a pass is resumed.
class RankReader {
 public:
  /// `resumed`: the state from which the first reading draws; undefined: the rank's generator as it is.
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
  /// Of the last reading.
  [[nodiscard]] ReaderMark mark() const { return {.generator = before_}; }

 private:
  at::Tensor resumed_, before_;
};

/// Reads one batch ahead, so that the last is known as such.
template <typename Batch>
class LookAhead : public BatchStream<Batch> {
 public:
  struct Options {
    at::Tensor resumed = {};        ///< see RankReader
    bool knows_other_ranks = true;  ///< else the source's remainder is of this rank alone
  };
  LookAhead(std::unique_ptr<BatchStream<Batch>> source, Options options)
      : source_(std::move(source)),
        reader_(std::move(options.resumed)),
        knows_other_ranks_(options.knows_other_ranks) {}

  std::optional<Issued<Batch>> next() override {
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
  std::optional<Issued<Batch>> ahead_;
};

}  // namespace accel::detail
