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
  std::optional<std::int64_t> total = {};  ///< default: what the range's size() tells, if it can
  std::string unit = "it";
  bool leave = true;                 ///< the full bar stays; false: it goes
  bool main_process_only = true;     ///< of each machine; in a rehearsal, where all ranks share one terminal, of all
  std::optional<bool> disable = {};  ///< default: off where standard error is no terminal
  RankContext* context = nullptr;    ///< default: the rank that the calling thread runs
};

/// A bar of what is done, on standard error; log lines go above it.
///
///     accel::ProgressBar bar(num_steps, {.desc = "train"});
///     bar.set_postfix("loss 0.31");
///     bar.update();
///
/// Drawn at most ten times a second, and when it is full. Several bars stand below each other.
/// Thread rule: the rank's thread. Source: accelerate/utils/tqdm.py; tqdm/std.py.
class ProgressBar {
 public:
  ProgressBar(std::optional<std::int64_t> total, const ProgressOptions& options);
  /// On a terminal of the caller's, whoever it is; `width` is asked for at each drawing.
  ProgressBar(terminal::Terminal& terminal, std::optional<std::int64_t> total, const ProgressOptions& options);
  ~ProgressBar();
  ProgressBar(ProgressBar&&) noexcept = default;
  ProgressBar& operator=(ProgressBar&&) noexcept = delete;

  void update(std::int64_t steps = 1);
  /// Shown behind the rate; drawn with the next update.
  void set_postfix(std::string text) { state_.postfix = std::move(text); }
  /// Whether the next update may draw, so that nobody computes a loss for nothing.
  [[nodiscard]] bool is_due() const;
  /// Draws what is so far, and leaves or removes the bar; the destructor does too.
  void close();

 private:
  using Clock = std::chrono::steady_clock;
  void draw();

  terminal::ProgressState state_;
  terminal::Terminal* terminal_ = nullptr;
  std::unique_ptr<terminal::Terminal::Bar> bar_;  // null where nothing is drawn
  Clock::time_point started_ = Clock::now(), drawn_ = {};
};

namespace detail {

/// A range that moves a bar as it is walked. Holds a range that was moved in, refers to one that lives elsewhere.
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

/// for (auto& batch : accel::progress(loader, {.desc = "epoch 3"})) ...
/// Give `total` for a loader over a stream, whose size() throws.
template <typename Range>
  requires(!std::is_arithmetic_v<std::remove_cvref_t<Range>>)
[[nodiscard]] auto progress(Range&& range, const ProgressOptions& options = {}) {
  return detail::ProgressRange<Range>(std::forward<Range>(range), options);
}

/// A bar that the caller moves.
[[nodiscard]] inline ProgressBar progress(std::int64_t total, const ProgressOptions& options = {}) {
  return {total, options};
}

}  // namespace accel
