#pragma once

#include <algorithm>
#include <deque>
#include <future>
#include <iterator>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "reference/data/batch_stream.hpp"
#include "reference/data/dataset.hpp"
#include "reference/data/iterable_shard.hpp"

namespace accel::detail {

/// Batches of a stream whose parts are distributed to several workers. Each worker reads its own parts, and batches are
/// taken from the workers in turn. Samples left over at the workers' ends are combined in the order of the workers, so
/// that at most one batch is short. Source: torch/utils/data/dataloader.py with an IterableDataset that is split by
/// worker; there every worker has a short last batch.
template <ShardedDataset Dataset, typename Collate, typename Batch>
class ShardedStreamBatches : public BatchStream<Batch> {
 public:
  struct Options {
    std::int64_t batch_size = 1;
    bool drop_last = false;
    ReadersOptions readers = {};                      ///< num_workers is at most the number of parts
    std::vector<std::int64_t> num_samples_read = {};  ///< per worker, in a resumed pass; otherwise empty
    std::int64_t num_left_over_read = 0;              ///< left-over samples that were already handed out
  };

  ShardedStreamBatches(Dataset& whole, Collate collate, Options options)
      : collate_(std::make_shared<Collate>(std::move(collate))), options_(std::move(options)) {
    for (int worker = 0; worker < options_.readers.num_workers; ++worker) {
      auto& reader =
          *readers_.emplace_back(std::make_shared<Reader>(Dataset(whole.shard(options_.readers.num_workers, worker))));
      if (!options_.num_samples_read.empty()) reader.num_to_skip = options_.num_samples_read.at(worker);
      if (!options_.readers.generators.empty()) reader.resumed = options_.readers.generators.at(worker);
    }
    turn_ = options_.readers.next;
  }

  std::optional<LoadedBatch<Batch>> next() override {
    if (!workers_) start_workers();
    while (num_ended_ < readers_.size()) {
      const auto worker = std::exchange(turn_, (turn_ + 1) % static_cast<int>(readers_.size()));
      auto& reader = *readers_[worker];
      if (reader.ended) continue;
      auto part = workers_->result(ahead_[worker].front(), worker);
      ahead_[worker].pop_front();
      if (part.batch) {
        read_ahead(worker);
        return LoadedBatch<Batch>{
            {.num_rows = options_.batch_size,
             .marks = {{.reader = worker, .num_samples = options_.batch_size, .generator = part.generator}}},
            std::move(*part.batch)};
      }
      reader.ended = true;
      reader.left_over = std::move(part.left_over);
      if (++num_ended_ == readers_.size()) join_left_over();
    }
    const auto samples = take_left_over(options_.batch_size);
    const auto num_rows = static_cast<std::int64_t>(samples.size());
    if (samples.empty() || (options_.drop_last && num_rows < options_.batch_size)) return std::nullopt;
    return LoadedBatch<Batch>{{.num_rows = num_rows,
                               .remainder = num_rows < options_.batch_size ? num_rows : 0,
                               .marks = {{.reader = kLeftOver, .num_samples = num_rows}}},
                              (*collate_)(samples)};
  }

 private:
  using Sample = SampleOf<Dataset>;
  // A complete batch, or the samples left over at a worker's end.
  struct Part {
    std::optional<Batch> batch = {};
    std::vector<Sample> left_over = {};
    at::Tensor generator = {};
  };
  struct Reader {
    explicit Reader(Dataset dataset) : dataset(std::move(dataset)) {}
    Dataset dataset = {};
    std::int64_t num_to_skip = 0;
    at::Tensor resumed = {};
    std::optional<SampleCursor<Dataset>> cursor = {};  // used only on the worker's thread
    bool ended = false;
    std::vector<Sample> left_over = {};
  };

  // Tasks are submitted to the workers in turn, starting at worker 0, independently of whose batch is returned first.
  void start_workers() {
    workers_ = detail::start_workers(static_cast<int>(readers_.size()), options_.readers, /*resumed=*/false);
    ahead_.resize(readers_.size());
    for (int batch = 0; batch < options_.readers.prefetch_factor; ++batch) {
      for (std::size_t worker = 0; worker < readers_.size(); ++worker) read_ahead(static_cast<int>(worker));
    }
  }

  void read_ahead(int worker) {
    ahead_[worker].push_back(
        workers_->submit(worker, [reader = readers_[worker], collate = collate_, rows = options_.batch_size] {
          return read_part(*reader, *collate, rows);
        }));
  }

  static Part read_part(Reader& reader, Collate& collate, std::int64_t batch_size) {
    if (!reader.cursor) {
      reader.cursor.emplace(reader.dataset);
      reader.cursor->skip(reader.num_to_skip);
      if (reader.resumed.defined()) default_generator().set_state(reader.resumed);
    }
    Part part;
    while (static_cast<std::int64_t>(part.left_over.size()) < batch_size) {
      auto sample = reader.cursor->next();
      if (!sample) return part;
      part.left_over.push_back(std::move(*sample));
    }
    part.batch = collate(part.left_over);
    part.left_over.clear();
    part.generator = default_generator().get_state();
    return part;
  }

  void join_left_over() {
    for (auto& reader : readers_) {
      left_over_.insert(left_over_.end(), std::make_move_iterator(reader->left_over.begin()),
                        std::make_move_iterator(reader->left_over.end()));
    }
    take_left_over(options_.num_left_over_read);
  }

  std::vector<Sample> take_left_over(std::int64_t num_samples) {
    const auto num = std::min(num_samples, static_cast<std::int64_t>(left_over_.size()));
    std::vector<Sample> samples(std::make_move_iterator(left_over_.begin()),
                                std::make_move_iterator(left_over_.begin() + num));
    left_over_.erase(left_over_.begin(), left_over_.begin() + num);
    return samples;
  }

  std::shared_ptr<Collate> collate_;  // shared with tasks, like the readers, which a time-out leaves behind
  Options options_;
  std::vector<std::shared_ptr<Reader>> readers_;
  std::vector<std::deque<std::future<Part>>> ahead_;  // per worker; a reader must not own what its own tasks return
  std::size_t num_ended_ = 0;
  int turn_ = 0;
  std::deque<Sample> left_over_;
  std::shared_ptr<Workers> workers_;
};

}  // namespace accel::detail
