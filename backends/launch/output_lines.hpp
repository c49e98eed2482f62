#pragma once

#include <cstdio>
#include <memory>
#include <ostream>
#include <string>
#include <string_view>

/// Forwards one output stream of one process line by line, so that lines of different processes never mix.
///
///     OutputLines lines({.descriptor = pipe,
///                        .out = &std::cerr,
///                        .prefix = "[rank 3] ",
///                        .log_file = "logs/rank_3/stderr.log"});
///     poll({lines.descriptor(), POLLIN});
///     lines.forward();  // the available data; repeat until descriptor() is -1
///
/// Thread rule: one thread.
namespace accel::launcher {

struct OutputLinesOptions {
  int descriptor = -1;  ///< the read end of a pipe; owned
  std::ostream* out = nullptr;
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
  /// Forwards the available data. Does not wait.
  void forward();

 private:
  void take(std::string_view text);

  OutputLinesOptions options_;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> log_;
  std::string pending_, last_line_;
};

}  // namespace accel::launcher
