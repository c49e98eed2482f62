#pragma once

#include <iterator>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>

#include "reference/data/batch_stream.hpp"
#include "reference/data/loader_core.hpp"
#include "reference/data/pass_core.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/tree/tree.hpp"

namespace accel::detail {

/// One pass: hands out batches and marks the last one in the rank's GradientState.
template <typename Batch>
class LoaderPass {
 public:
  /// `open(pass)` starts the pass and creates its stream. A pass that starts inside its epoch counts as a pass even if
  /// no batch is left.
  template <typename Open>
  LoaderPass(std::shared_ptr<LoaderCore> core, std::int64_t skip_batches, Open&& open)
      : core_(std::move(core)), pass_(*core_, skip_batches), any_batch_(pass_.begins_inside()) {
    batches_ = open(pass_);
    for (auto left = pass_.num_to_discard(); left > 0; --left) {
      const auto discarded = batches_->next();
      if (!discarded) break;
      pass_.count(discarded->marks);
    }
    advance();
  }

  [[nodiscard]] bool has_batch() const { return current_.has_value(); }
  Batch& batch() { return current_->batch; }

  void advance() {
    current_ = batches_->next();
    if (!current_) {
      pass_.finish(any_batch_);
      return;
    }
    any_batch_ = true;
    if (core_->moves_batches()) {
      current_->batch =
          map_tensors(current_->batch, [&](const at::Tensor& tensor) { return core_->begin_move(tensor); });
      core_->finish_moves();
    }
    pass_.hand_out(*current_);
  }

 private:
  std::shared_ptr<LoaderCore> core_;
  PassCore pass_;
  std::unique_ptr<BatchStream<Batch>> batches_;
  std::optional<LoadedBatch<Batch>> current_;
  bool any_batch_;
};

/// An input iterator. The pass ends when the last copy is destroyed.
template <typename Batch>
class LoaderIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  LoaderIterator(std::shared_ptr<LoaderPass<Batch>> pass, std::source_location where)
      : pass_(std::move(pass)), where_(where) {}
  Batch& operator*() const { return pass_->batch(); }
  LoaderIterator& operator++() {
    const CallSite site(where_);
    pass_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const LoaderIterator& iterator, std::default_sentinel_t) {
    return !iterator.pass_->has_batch();
  }

 private:
  std::shared_ptr<LoaderPass<Batch>> pass_;
  std::source_location where_;  // location of the loop
};

}  // namespace accel::detail
