#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace accel::terminal {

/// Scrolling lines with progress bars below them, on one file descriptor.
///
/// A line replaces the bars, which are redrawn below it. Bars are ordered by creation, the oldest at the top. Each
/// change uses one write call, so that no other output appears in between. Thread rule: any thread; the mutex guards
/// all members.
class Terminal {
 public:
  explicit Terminal(int descriptor) : descriptor_(descriptor) {}
  /// Returns the terminal of the process's standard error, which all its ranks share for log lines and bars.
  static Terminal& standard_error();

  [[nodiscard]] bool is_terminal() const;
  /// Number of characters per line; 80 if unknown.
  [[nodiscard]] int width() const;
  void write_line(std::string_view line);

  /// One bar on the terminal. The destructor turns the last drawn text into a scrolling line, or removes it.
  class Bar {
   public:
    ~Bar();
    Bar(const Bar&) = delete;
    Bar& operator=(const Bar&) = delete;
    void draw(std::string text);
    /// Sets whether the destructor leaves the last text on the terminal.
    void keep(bool leave);

   private:
    friend class Terminal;
    explicit Bar(Terminal& terminal) : terminal_(terminal) {}
    Terminal& terminal_;
    std::string text_;  // guarded by the terminal's mutex
    bool leave_ = true;
  };
  [[nodiscard]] std::unique_ptr<Bar> add_bar();

 private:
  std::string erased();
  [[nodiscard]] std::string drawn();

  int descriptor_;
  std::mutex mutex_;
  std::vector<Bar*> bars_;
  int lines_drawn_ = 0;
};

}  // namespace accel::terminal
