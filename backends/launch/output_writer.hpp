#pragma once

#include <poll.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <vector>

/// Writes the output of a launcher on separate threads, so that a reader that stops reading delays nothing else.
///
///     LaunchOutput output;
///     if (!output.standard_error().is_full()) output.standard_error().write("[rank 3] loss 0.5\n");
///     output.flush({.idle = std::chrono::seconds(1), .total = std::chrono::seconds(5)});
///
/// A terminal after Ctrl-S, a pager and a log shipper may stop reading for any time. A launcher that waits for them
/// can neither pass on signals nor tell other machines that it is alive.
///
/// Thread rule: one thread, which calls all methods.
namespace accel::launcher {

/// How long to wait for a reader: in total, and without any progress.
struct FlushLimits {
  std::chrono::milliseconds idle, total;
};

/// Writes to one file descriptor.
class OutputWriter {
 public:
  /// `descriptor` is borrowed. The signal mask of the calling thread applies to the thread that writes.
  explicit OutputWriter(int descriptor);
  /// Discards the text that the reader did not accept.
  ~OutputWriter();
  OutputWriter(const OutputWriter&) = delete;
  OutputWriter& operator=(const OutputWriter&) = delete;

  /// Queues the text. Does not wait, and accepts text even if the queue is full.
  void write(std::string_view text);
  /// Whether the reader is slower than the sources. Callers then stop reading from their sources.
  [[nodiscard]] bool is_full() const;
  [[nodiscard]] bool is_empty() const;
  /// If the queue is full, adds a descriptor that becomes readable when it has room again.
  void add_to(std::vector<pollfd>& waiting) const;
  /// Waits until all text is written. Returns false if a limit is reached before.
  bool flush(const FlushLimits& limits);

 private:
  struct Queue;
  static void write_all(Queue& queue);

  std::shared_ptr<Queue> queue_;  // shared with the thread, which a blocked write may keep beyond this object
};

/// The standard streams of this process. If both are one file, one thread writes both and keeps their order.
class LaunchOutput {
 public:
  LaunchOutput();

  [[nodiscard]] OutputWriter& standard_output() { return output_; }
  [[nodiscard]] OutputWriter& standard_error() { return error_ ? *error_ : output_; }
  [[nodiscard]] bool is_empty() { return output_.is_empty() && standard_error().is_empty(); }
  /// As OutputWriter::add_to and OutputWriter::flush, for both streams.
  void add_to(std::vector<pollfd>& waiting) const;
  bool flush(const FlushLimits& limits);

 private:
  OutputWriter output_;
  std::unique_ptr<OutputWriter> error_;  // null: the same file as the output
};

/// Prints the last line of a launcher on standard error. Gives up if the reader accepts nothing for 2 s.
void print_last_line(std::string_view line);

}  // namespace accel::launcher
