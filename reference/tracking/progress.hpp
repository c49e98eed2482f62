#pragma once

#include <chrono>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "reference/terminal/progress_text.hpp"
#include "reference/terminal/terminal.hpp"

namespace accel {

struct RankContext;

struct ProgressOptions {
  std::string desc = {};
  std::optional<std::int64_t> total = {};  ///< default: the range's size(), if it has one
  std::string unit = "it";
  bool leave = true;                 ///< leave the bar on the screen at the end
  bool main_process_only = true;     ///< one bar per machine; in the simulator, one bar in total
  std::optional<bool> disable = {};  ///< default: disabled if standard error is not a terminal
  RankContext* context = nullptr;    ///< default: the rank that the calling thread runs
};

/// A progress bar on standard error. Log lines appear above it.
///
///     accel::ProgressBar bar(num_steps, {.desc = "train"});
///     bar.set_postfix("loss 0.31");
///     bar.update();
///
/// Drawn at most ten times per second, and when it is full. Several bars are drawn below each other.
/// Thread rule: the rank's thread. Source: accelerate/utils/tqdm.py; tqdm/std.py.
class ProgressBar {
 public:
  ProgressBar(std::optional<std::int64_t> total, const ProgressOptions& options);
  /// Creates a bar on the given terminal, on any rank. The terminal's width is read for each drawing.
  ProgressBar(terminal::Terminal& terminal, std::optional<std::int64_t> total, const ProgressOptions& options);
  ~ProgressBar();
  ProgressBar(ProgressBar&&) noexcept = default;
  ProgressBar& operator=(ProgressBar&&) noexcept = delete;

  void update(std::int64_t steps = 1);
  /// Sets the text after the rate. It appears with the next update.
  void set_postfix(std::string text) { state_.postfix = std::move(text); }
  /// True if the next update may draw, so that the caller can avoid computing a loss that is not shown.
  [[nodiscard]] bool is_due() const;
  /// Draws the current state, then leaves or removes the bar. The destructor calls it.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  terminal::ProgressState state_;
  terminal::Terminal* terminal_ = nullptr;
  std::unique_ptr<terminal::Terminal::Bar> bar_;  // null if the bar is not shown
  Clock::time_point started_ = Clock::now(), drawn_ = {};
};

namespace detail {

/// A range that updates a bar during iteration. Owns a range passed as an rvalue, refers to one passed as an lvalue.
template <typename Range>
class ProgressRange {
 public:
  ProgressRange(Range&& range, const ProgressOptions& options)
      : range_(std::forward<Range>(range)), options_(options) {}

  class Iterator {
   public:
    using Inner = decltype(std::begin(std::declval<Range&>()));
    using difference_type = std::ptrdiff_t;
    Iterator(Inner inner, ProgressBar& bar) : inner_(std::move(inner)), bar_(&bar) {}
    decltype(auto) operator*() const { return *inner_; }
    Iterator& operator++() {
      ++inner_;
      bar_->update();
      return *this;
    }
    void operator++(int) { ++*this; }
    template <typename End>
    [[nodiscard]] bool is_at(const End& end) const {
      return inner_ == end;
    }

   private:
    mutable Inner inner_;
    ProgressBar* bar_;
  };
  template <typename End>
  struct Sentinel {
    End end = {};
    friend bool operator==(const Iterator& iterator, const Sentinel& sentinel) { return iterator.is_at(sentinel.end); }
  };

  auto begin() {
    bar_ = std::make_unique<ProgressBar>(total(), options_);
    return Iterator(std::begin(range_), *bar_);
  }
  auto end() { return Sentinel<decltype(std::end(range_))>{std::end(range_)}; }

 private:
  [[nodiscard]] std::optional<std::int64_t> total() const {
    if (options_.total) return options_.total;
    if constexpr (requires { std::size(range_); })
      return static_cast<std::int64_t>(std::size(range_));
    else
      return std::nullopt;
  }

  Range range_;
  ProgressOptions options_;
  std::unique_ptr<ProgressBar> bar_;
};

}  // namespace detail

/// Wraps a range: for (auto& batch : accel::progress(loader, {.desc = "epoch 3"})) ...
/// Set `total` for a loader over a stream, whose size() throws.
template <typename Range>
  requires(!std::is_arithmetic_v<std::remove_cvref_t<Range>>)
[[nodiscard]] auto progress(Range&& range, const ProgressOptions& options = {}) {
  return detail::ProgressRange<Range>(std::forward<Range>(range), options);
}

/// Creates a bar that the caller updates.
[[nodiscard]] inline ProgressBar progress(std::int64_t total, const ProgressOptions& options = {}) {
  return {total, options};
}

}  // namespace accel
