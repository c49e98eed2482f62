#pragma once

#include <algorithm>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/comm/group.hpp"
#include "reference/data/batch_stream.hpp"
#include "reference/tree/tree_rows.hpp"

namespace accel::detail {

/// Exchanges the numbers of rows that the ranks of a group have read for a step. Collective, once per step.
class RowCountExchange {
 public:
  explicit RowCountExchange(Group group) : group_(std::move(group)) {}
  /// Returns the number of rows of every rank. Throws ArgumentError on every rank if one of them passed kFailed.
  std::vector<std::int64_t> take(std::int64_t own_rows) const;
  static constexpr std::int64_t kFailed = -1;

 private:
  Group group_;
};

/// Gives all ranks the same number of steps when each rank reads separate parts. A rank that reached its end repeats
/// its first rows, which metrics ignore; with drop_last, all ranks stop when the first one ends. In Accelerate the
/// ranks have different numbers of steps, and the next collective deadlocks.
template <Tree Batch>
class EvenSteps : public BatchStream<Batch> {
 public:
  struct Options {
    std::int64_t batch_size = 1;
    bool drop_last = false;
    at::Tensor resumed = {};                          ///< see RankReader
    ReadFirstBatches<Batch> read_first_batches = {};  ///< set if the pass starts after its first batch
  };

  using Open = std::function<std::unique_ptr<BatchStream<Batch>>()>;

  EvenSteps(Open open, RowCountExchange census, Options options)
      : open_(std::move(open)), census_(std::move(census)), options_(std::move(options)), reader_(options_.resumed) {}

  std::optional<LoadedBatch<Batch>> next() override {
    if (!std::exchange(started_, true)) read([] {});
    if (!goes_on()) return std::nullopt;
    auto current = std::exchange(ahead_, std::nullopt);
    LoadedBatch<Batch> step;
    read([&] { step = filled(std::move(current), rows_); });
    step.is_last = !goes_on();
    step.marks.push_back(reader_.mark());
    return step;
  }

 private:
  // If anything fails on this rank, including `before`, the other ranks learn about it in the next census.
  template <typename F>
  void read(F&& before) {
    std::exception_ptr error;
    try {
      before();
      if (options_.read_first_batches) first_ = std::exchange(options_.read_first_batches, {})(/*num_batches=*/1);
      if (!source_) source_ = open_();
      ahead_ = reader_([&] { return source_->next(); });
      // Cloned, because the program may modify the batch that it receives.
      if (ahead_ && !first_)
        first_ = map_tensors(ahead_->batch, [](const at::Tensor& tensor) { return tensor.clone(); });
      if (first_)
        check_argument(num_rows(*first_).has_value(),
                       "the batches of the stream have no rows, so ranks cannot read separate parts; let rank 0 read "
                       "(dispatch_batches: true)");
    } catch (...) {
      error = std::current_exception();
    }
    try {
      rows_ = census_.take(error ? RowCountExchange::kFailed : (ahead_ ? ahead_->num_rows : 0));
    } catch (...) {
      if (error) std::rethrow_exception(error);  // this rank's own error is more specific
      throw;
    }
    check_first();
  }

  [[nodiscard]] bool goes_on() const {
    const auto [fewest, most] = std::minmax_element(rows_.begin(), rows_.end());
    return options_.drop_last ? *fewest == options_.batch_size : *most > 0;
  }

  // All ranks have the same row counts, so they all throw if one of them has no rows to repeat.
  void check_first() {
    if (!std::exchange(is_first_step_, false) || options_.drop_last || !goes_on()) return;
    std::vector<int> without;
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      if (rows_[rank] == 0) without.push_back(static_cast<int>(rank));
    }
    check_argument(
        without.empty(),
        "the parts of rank {} of {} contain no samples, so it cannot take part in a step; use fewer ranks or "
        "other parts, or let rank 0 read (dispatch_batches: true)",
        without.empty() ? 0 : without.front(), rows_.size());
  }

  LoadedBatch<Batch> filled(std::optional<LoadedBatch<Batch>> current,
                            const std::vector<std::int64_t>& real_rows) const {
    const auto most = *std::max_element(real_rows.begin(), real_rows.end());
    LoadedBatch<Batch> step;
    std::optional<Batch> own;
    if (current) {
      step = std::move(*current);
      own = std::move(step.batch);
    }
    step.batch = pad_rows(std::move(own), *first_, most);
    step.num_rows = most;
    step.remainder = 0;
    const auto num_real = std::accumulate(real_rows.begin(), real_rows.end(), std::int64_t{0});
    if (num_real < most * static_cast<std::int64_t>(real_rows.size())) {
      step.remainder = num_real;
      step.real_rows = real_rows;
    }
    return step;
  }

  Open open_;
  std::unique_ptr<BatchStream<Batch>> source_;
  RowCountExchange census_;
  Options options_;
  RankReader reader_;
  std::optional<Batch> first_;
  std::optional<LoadedBatch<Batch>> ahead_;
  std::vector<std::int64_t> rows_;  // of the step ahead, per rank
  bool started_ = false, is_first_step_ = !options_.read_first_batches;
};

}  // namespace accel::detail
