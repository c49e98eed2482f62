#pragma once

#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "backends/launch/output_writer.hpp"

/// Forwards one output stream of one process line by line, so that lines of different processes never mix.
///
///     OutputLines lines({.descriptor = pipe,
///                        .out = &output.standard_error(),
///                        .prefix = "[rank 3] ",
///                        .log_file = "logs/rank_3/stderr.log"});
///     if (!lines.must_wait()) poll({lines.descriptor(), POLLIN});
///     lines.forward();  // some of the available data; repeat until descriptor() is -1
///
/// A process that writes faster than `out` accepts is blocked by its pipe. A line of more than 64 KiB is forwarded in
/// parts.
///
/// Thread rule: one thread.
namespace accel::launcher {

struct OutputLinesOptions {
  int descriptor = -1;  ///< the read end of a pipe; owned
  OutputWriter* out = nullptr;
  std::string prefix;
  std::string log_file;  ///< also receives the lines, without prefix; its folder must exist; empty: none
};

class OutputLines {
 public:
  /// Throws ConfigError if the log file cannot be written.
  explicit OutputLines(OutputLinesOptions options);
  ~OutputLines();
  OutputLines(OutputLines&& other) noexcept;
  OutputLines(const OutputLines&) = delete;
  OutputLines& operator=(const OutputLines&) = delete;
  OutputLines& operator=(OutputLines&&) = delete;

  /// The descriptor to poll; -1 after the end of the stream.
  [[nodiscard]] int descriptor() const { return options_.descriptor; }
  /// The last line that is not empty.
  [[nodiscard]] const std::string& last_line() const { return last_line_; }
  /// Whether `out` accepts nothing now; `forward` then does nothing.
  [[nodiscard]] bool must_wait() const { return options_.out->is_full(); }
  /// Forwards some of the available data: a bounded amount, so that a process that writes without a pause leaves time
  /// for everything else. Does not wait.
  void forward();
  /// Forwards what a process that has ended has left in its pipe, even if `out` is full.
  void drain();

 private:
  void read_up_to(std::size_t num_bytes);
  void take(std::string_view text);
  void forward_line(std::string_view line);

  OutputLinesOptions options_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_;
  std::string pending_, last_line_;
};

}  // namespace accel::launcher
