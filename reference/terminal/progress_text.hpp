#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace accel::terminal {

/// The content of a progress bar, independent of a terminal.
struct ProgressState {
  std::string desc = {};
  std::int64_t done = 0;
  std::optional<std::int64_t> total = {};
  double seconds = 0;
  std::string unit = "it";
  std::string postfix = {};
};

/// Formats "epoch 3:  50%|#####     | 5/10 [00:02<00:02,  2.50it/s, loss=0.3]" with at most `width` characters, or,
/// without a total, "5it [00:02,  2.50it/s]". Source: tqdm/std.py, format_meter, with ascii=True.
std::string progress_text(const ProgressState& state, int width);

/// Formats a duration as "01:02" or "1:02:03".
std::string interval_text(double seconds);

}  // namespace accel::terminal
