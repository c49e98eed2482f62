#pragma once

#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/batch_sampler.hpp"
#include "reference/data/workers.hpp"

/// The batches of one pass, from whatever they are read; loaders are made by putting these one over the other.
namespace accel::detail {

template <typename Batch>
struct Issued {
  Batch batch;
  std::int64_t num_rows = 0;   ///< samples of this rank, duplicates included
  std::int64_t remainder = 0;  ///< samples of the step over all ranks that are no duplicates; 0: the step is a full one
  bool is_last = false;        ///< known only above LookAhead and DispatchedBatches
};

template <typename Batch>
class BatchStream {
 public:
  virtual ~BatchStream() = default;
  virtual std::optional<Issued<Batch>> next() = 0;
  /// Passes over one batch, without making it where that can be; false at the end.
  virtual bool skip() { return next().has_value(); }
};

/// Batches of a map-style dataset: the steps' indices, fetched here or by workers, in order.
template <typename Batch>
class IndexedBatches : public BatchStream<Batch> {
 public:
  using Fetch = std::function<Batch(const std::vector<std::int64_t>&)>;
  struct ReadAheadOptions {
    int num_workers = 0, prefetch_factor = 2;
    std::uint64_t base_seed = 0;
  };

  IndexedBatches(StepSource& steps, Fetch fetch, ReadAheadOptions options) : steps_(steps), fetch_(std::move(fetch)), options_(options) {}

  std::optional<Issued<Batch>> next() override {
    if (options_.num_workers == 0) {
      auto step = steps_.next();
      if (!step) return std::nullopt;
      return Issued<Batch>{fetch_(step->indices), static_cast<std::int64_t>(step->indices.size()), step->remainder};
    }
    if (!workers_) start_workers();
    if (ahead_.empty()) return std::nullopt;
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return ready.get();
  }

  bool skip() override { return workers_ ? BatchStream<Batch>::skip() : steps_.next().has_value(); }

 private:
  void start_workers() {
    workers_ = std::make_unique<Workers>(options_.num_workers, options_.base_seed);
    for (int batch = 0; batch < options_.num_workers * options_.prefetch_factor; ++batch) read_ahead();
  }

  void read_ahead() {
    auto step = steps_.next();
    if (!step) return;
    auto task = std::make_shared<std::packaged_task<Issued<Batch>()>>([this, step = std::move(*step)] {
      return Issued<Batch>{fetch_(step.indices), static_cast<std::int64_t>(step.indices.size()), step.remainder};
    });
    ahead_.push_back(task->get_future());
    workers_->submit([task] { (*task)(); });
  }

  StepSource& steps_;
  Fetch fetch_;
  ReadAheadOptions options_;
  std::deque<std::future<Issued<Batch>>> ahead_;
  std::unique_ptr<Workers> workers_;  // ends before what its tasks use
};

/// Another stream, read by one thread of its own some batches ahead.
template <typename Batch>
class ReadAhead : public BatchStream<Batch> {
 public:
  ReadAhead(std::unique_ptr<BatchStream<Batch>> source, int depth, std::uint64_t seed) : source_(std::move(source)), depth_(depth), seed_(seed) {}

  std::optional<Issued<Batch>> next() override {
    if (!reader_) {
      reader_ = std::make_unique<Workers>(1, seed_);
      for (int batch = 0; batch < depth_; ++batch) read_ahead();
    }
    auto ready = std::move(ahead_.front());
    ahead_.pop_front();
    read_ahead();
    return ready.get();
  }

 private:
  void read_ahead() {
    auto task = std::make_shared<std::packaged_task<std::optional<Issued<Batch>>()>>([this] { return source_->next(); });
    ahead_.push_back(task->get_future());
    reader_->submit([task] { (*task)(); });
  }

  std::unique_ptr<BatchStream<Batch>> source_;
  int depth_;
  std::uint64_t seed_;
  std::deque<std::future<std::optional<Issued<Batch>>>> ahead_;
  std::unique_ptr<Workers> reader_;  // ends before what its tasks use
};

/// Reads one batch ahead, so that the last is known as such.
template <typename Batch>
class LookAhead : public BatchStream<Batch> {
 public:
  explicit LookAhead(std::unique_ptr<BatchStream<Batch>> source) : source_(std::move(source)) {}

  std::optional<Issued<Batch>> next() override {
    if (!std::exchange(started_, true)) ahead_ = source_->next();
    auto current = std::exchange(ahead_, std::nullopt);
    if (!current) return std::nullopt;
    ahead_ = source_->next();
    current->is_last = !ahead_;
    return current;
  }

 private:
  std::unique_ptr<BatchStream<Batch>> source_;
  std::optional<Issued<Batch>> ahead_;
  bool started_ = false;
};

}  // namespace accel::detail
