#pragma once

#include <algorithm>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "reference/core/error_text.hpp"
#include "reference/data/batch_stream.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tree/tree_bytes.hpp"
#include "reference/tree/tree_rows.hpp"

namespace accel {

/// Division of a step that rank 0 has read: rank r gets the rows [r * rows_per_rank, (r + 1) * rows_per_rank).
struct DispatchPlan {
  std::int64_t rows_per_rank = 0;
  std::int64_t num_padding =
      0;  ///< rows from the start of the epoch that are appended to the step before it is divided
};

struct DispatchStep {
  std::int64_t num_rows = 0;  ///< rows that rank 0 has read
  int num_ranks = 1;
  bool is_last = false;
  std::int64_t full_rows = 0;  ///< size to which the last step is padded; 0: a multiple of the number of ranks
};

/// Plans the division of a step. Without `full_rows` the last step is smaller on all ranks alike and is padded to a
/// multiple of the number of ranks, so that every rank has a row. Throws ArgumentError if an earlier step is not
/// divisible by the number of ranks. Source: accelerate/data_loader.py, DataLoaderDispatcher.__iter__.
DispatchPlan plan_dispatch(DispatchStep step);

}  // namespace accel

namespace accel::detail {

/// The message that rank 0 broadcasts before the tensors of a step.
struct Announcement {
  enum Kind : std::int64_t { kStep, kEnd, kError };
  Kind kind = kStep;
  bool is_last = false;
  std::int64_t num_rows = 0;  ///< without padding, over all ranks
  std::int64_t rows_per_rank = 0;
  std::string text = {};  ///< of a step: the packed batch without tensor elements; of an error: its message
};

/// Broadcasts announcements and tensors from rank 0. Collective over the world.
class DispatchChannel {
 public:
  explicit DispatchChannel(RankContext& context) : context_(context) {}
  [[nodiscard]] RankContext& context() const { return context_; }
  /// Returns rank 0's announcement on every rank. A text that equals the previous one is not sent again.
  Announcement exchange(Announcement announcement);
  void broadcast(at::Tensor& tensor) const;
  [[nodiscard]] at::Tensor on_device(const at::Tensor& tensor) const;

 private:
  RankContext& context_;
  std::string last_text_;
};

/// Rank 0 reads batches, combines them into steps and broadcasts them; each rank takes its slice.
/// If reading throws on rank 0, every rank throws; the other ranks throw ArgumentError.
/// Source: accelerate/data_loader.py, DataLoaderDispatcher.
template <Tree Batch>
class DispatchedBatches : public BatchStream<Batch> {
 public:
  struct Options {
    int batches_per_step = 1;
    bool drop_last = false;      ///< drops a last step of fewer batches
    int num_parts = 1;           ///< number of slices of a step: the ranks that get different samples
    int part = 0;                ///< the slice of this rank
    std::int64_t full_rows = 0;  ///< rows of every step including the last one; 0: the last step may be smaller
    at::Tensor resumed = {};     ///< see RankReader
    ReadFirstBatches<Batch> read_first_batches = {};  ///< set if the pass starts after its first step
    std::function<Batch(const Batch& step, RowRange rows, int part)> slice = {};  ///< default: slice_rows
  };
  using Open = std::function<std::unique_ptr<BatchStream<Batch>>()>;

  /// `open` opens the source. Only rank 0 calls it, and read_first_batches.
  DispatchedBatches(RankContext& context, Open open, Options options)
      : channel_(context), open_(std::move(open)), options_(std::move(options)), reader_(options_.resumed) {}

  std::optional<LoadedBatch<Batch>> next() override {
    if (ended_) return std::nullopt;
    auto [announcement, batch] = channel_.context().rank == 0 ? read_and_announce() : receive_announcement();
    ended_ = announcement.is_last || announcement.kind == Announcement::kEnd;
    if (announcement.kind == Announcement::kEnd) return std::nullopt;
    for_each_tensor(batch, [&](at::Tensor& tensor) { channel_.broadcast(tensor); });
    const auto rows = announcement.rows_per_rank, begin = options_.part * rows;
    const RowRange own{.begin = begin, .end = begin + rows};
    return LoadedBatch<Batch>{
        {.num_rows = rows,
         .remainder = announcement.num_rows < rows * options_.num_parts ? announcement.num_rows : 0,
         .is_last = announcement.is_last,
         .marks = std::move(marks_)},
        options_.slice ? options_.slice(batch, own, options_.part) : slice_rows(batch, own)};
  }

 private:
  std::optional<Batch> begin_reading() {
    if (options_.read_first_batches) {
      const auto first = std::exchange(options_.read_first_batches, {})(options_.batches_per_step);
      if (first) keep_first_rows(*first);
    }
    source_ = open_();
    return read_step();
  }

  std::optional<Batch> read_step() {
    std::vector<Batch> batches;
    ahead_marks_.clear();
    reader_([&] {
      while (static_cast<int>(batches.size()) < options_.batches_per_step) {
        auto issued = source_->next();
        if (!issued) break;
        ahead_marks_.insert(ahead_marks_.end(), issued->marks.begin(), issued->marks.end());
        batches.push_back(std::move(issued->batch));
      }
    });
    ahead_marks_.push_back(reader_.mark());
    const bool is_short = static_cast<int>(batches.size()) < options_.batches_per_step;
    if (batches.empty() || (is_short && options_.drop_last)) return std::nullopt;
    auto step = batches.size() == 1 ? std::move(batches.front()) : concatenate(batches);
    if (!first_rows_) keep_first_rows(step);
    return step;
  }

  // Cloned, because the program may modify the batch that it receives.
  void keep_first_rows(const Batch& step) {
    const auto rows = slice_rows(
        step, {.end = std::min(std::max<std::int64_t>(options_.full_rows, options_.num_parts), rows_of(step))});
    first_rows_ = map_tensors(rows, [](const at::Tensor& tensor) { return tensor.clone(); });
  }

  static std::int64_t rows_of(const Batch& batch) {
    const auto rows = num_rows(batch);
    check_argument(
        rows.has_value(),
        "dispatch_batches: the batch contains neither a tensor nor a list; expected rows that can be sliced");
    return *rows;
  }

  std::pair<Announcement, Batch> read_and_announce() {
    Announcement announcement;
    Batch batch{};
    try {
      if (!source_) ahead_ = begin_reading();
      auto step = std::exchange(ahead_, std::nullopt);
      if (!step) {
        announcement.kind = Announcement::kEnd;
      } else {
        marks_ = std::move(ahead_marks_);
        ahead_ = read_step();
        marks_.back() = ahead_marks_.back();  // the rank's own mark must be the state before the read-ahead
        announcement.is_last = !ahead_;
        announcement.num_rows = rows_of(*step);
        const auto plan = plan_dispatch({.num_rows = announcement.num_rows,
                                         .num_ranks = options_.num_parts,
                                         .is_last = announcement.is_last,
                                         .full_rows = options_.full_rows});
        announcement.rows_per_rank = plan.rows_per_rank;
        batch = map_tensors(pad_rows(std::move(step), *first_rows_, announcement.num_rows + plan.num_padding),
                            [&](const at::Tensor& tensor) { return channel_.on_device(tensor); });
        announcement.text = pack(batch, TensorBytes::kShapeOnly);
      }
    } catch (const std::exception& error) {
      channel_.exchange({.kind = Announcement::kError, .text = text_of(error)});
      throw;
    }
    return {channel_.exchange(std::move(announcement)), std::move(batch)};
  }

  std::pair<Announcement, Batch> receive_announcement() {
    auto announcement = channel_.exchange({});
    check_argument(announcement.kind != Announcement::kError, "rank 0, which reads the data for all ranks, failed: {}",
                   announcement.text);
    if (announcement.kind == Announcement::kEnd) return {std::move(announcement), Batch{}};
    auto batch = unpack<Batch>(announcement.text, TensorBytes::kShapeOnly);
    return {std::move(announcement),
            map_tensors(batch, [&](const at::Tensor& tensor) { return channel_.on_device(tensor); })};
  }

  DispatchChannel channel_;
  Open open_;
  std::unique_ptr<BatchStream<Batch>> source_;  // null except on rank 0
  Options options_;
  RankReader reader_;
  std::vector<ReaderMark> marks_, ahead_marks_;  // of the current step and of the step ahead
  std::optional<Batch> ahead_, first_rows_;
  bool ended_ = false;
};

}  // namespace accel::detail
