#include "reference/terminal/progress_text.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accel::terminal {
namespace {

// Counts code points and not bytes: a description may be in any language. Continuation bytes of UTF-8 are 10xxxxxx.
std::size_t num_letters(const std::string& text) {
  return static_cast<std::size_t>(std::count_if(
      text.begin(), text.end(), [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; }));
}

// The second loop removes the bytes of a code point that the first loop has cut in two.
std::string cut(std::string text, std::size_t width) {
  while (num_letters(text) > width) text.pop_back();
  while (!text.empty() && num_letters(text + "x") == num_letters(text)) text.pop_back();
  return text;
}

// Source: tqdm/std.py, format_meter: below one per second the rate is inverted.
std::string rate_text(const ProgressState& state) {
  if (state.done == 0 || state.seconds <= 0) return fmt::format("?{}/s", state.unit);
  const double rate = static_cast<double>(state.done) / state.seconds;
  return rate < 1 ? fmt::format("{:5.2f}s/{}", 1 / rate, state.unit) : fmt::format("{:5.2f}{}/s", rate, state.unit);
}

// If `done` exceeds the total, the remaining time is unknown ("?").
std::string numbers_text(const ProgressState& state) {
  const auto end = rate_text(state) + (state.postfix.empty() ? "" : ", " + state.postfix);
  const auto elapsed = interval_text(state.seconds);
  if (!state.total) return fmt::format("{}{} [{}, {}]", state.done, state.unit, elapsed, end);
  const auto left = static_cast<double>(*state.total - state.done);
  const auto remaining =
      state.done > 0 && left >= 0 ? interval_text(state.seconds * left / static_cast<double>(state.done)) : "?";
  return fmt::format("| {}/{} [{}<{}, {}]", state.done, *state.total, elapsed, remaining, end);
}

}  // namespace

std::string interval_text(double seconds) {
  const auto whole = static_cast<std::int64_t>(seconds);
  const auto minutes = fmt::format("{:02}:{:02}", whole / 60 % 60, whole % 60);
  return whole >= 3600 ? fmt::format("{}:{}", whole / 3600, minutes) : minutes;
}

// The bar gets the width that the description and the numbers leave. Without a total there is no bar.
std::string progress_text(const ProgressState& state, int width) {
  const auto letters = static_cast<std::size_t>(std::max(width, 1));
  auto text = state.desc.empty() ? "" : state.desc + ": ";
  const auto numbers = numbers_text(state);
  if (state.total) {
    const double share = *state.total > 0
                             ? std::clamp(static_cast<double>(state.done) / static_cast<double>(*state.total), 0.0, 1.0)
                             : 1.0;
    text += fmt::format("{:3.0f}%|", share * 100);
    const auto taken = num_letters(text) + num_letters(numbers);
    const auto bar = letters > taken ? letters - taken : 0;
    const auto filled = static_cast<std::size_t>(share * static_cast<double>(bar));
    text += std::string(filled, '#') + std::string(bar - filled, ' ');
  }
  return cut(text + numbers, letters);
}

}  // namespace accel::terminal
