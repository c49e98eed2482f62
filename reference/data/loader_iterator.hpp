#pragma once

#include <cstddef>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <source_location>
#include <utility>

#include "reference/data/batch_stream.hpp"
#include "reference/data/pass.hpp"
#include "reference/rank_local/call_site.hpp"
#include "reference/tree/tree.hpp"

namespace accel::detail {

/// The top of a pass's streams, with the batch that the loop gets.
template <typename Batch>
class TypedBatches : public PassBatches {
 public:
  explicit TypedBatches(std::unique_ptr<BatchStream<Batch>> stream) : stream_(std::move(stream)) {}
  [[nodiscard]] Batch& batch() { return current_->batch; }
  const BatchRecord* next() override {
    current_ = stream_->next();
    return current_ ? &*current_ : nullptr;
  }
  void map(const std::function<at::Tensor(const at::Tensor&)>& change) override {
    current_->batch = map_tensors(current_->batch, change);
  }

 private:
  std::unique_ptr<BatchStream<Batch>> stream_;
  std::optional<LoadedBatch<Batch>> current_;
};

/// An input iterator. The pass ends when the last copy is destroyed.
template <typename Batch>
class LoaderIterator {
 public:
  using value_type = Batch;
  using difference_type = std::ptrdiff_t;
  /// Reads the first batch of the pass from `stream`.
  LoaderIterator(std::shared_ptr<Pass> pass, std::unique_ptr<BatchStream<Batch>> stream, std::source_location where)
      : pass_(std::move(pass)), where_(where) {
    auto batches = std::make_unique<TypedBatches<Batch>>(std::move(stream));
    batches_ = batches.get();
    pass_->read(std::move(batches));
  }
  Batch& operator*() const { return batches_->batch(); }
  LoaderIterator& operator++() {
    const CallSite site(where_);
    pass_->advance();
    return *this;
  }
  void operator++(int) { ++*this; }
  friend bool operator==(const LoaderIterator& iterator, std::default_sentinel_t) { return !iterator.pass_->is_open(); }

 private:
  std::shared_ptr<Pass> pass_;
  TypedBatches<Batch>* batches_;  // of the pass, until it ends
  std::source_location where_;    // location of the loop
};

}  // namespace accel::detail
