#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace accel::terminal {

/// Lines that scroll, and bars that stay below them, on one descriptor.
///
/// Where bars are drawn, a line is written in their place and they are drawn anew under it. Of several bars the first
/// made is the uppermost. One write call for each change, so that nothing gets between. Thread rule: any thread; the
/// mutex guards all of it.
class Terminal {
 public:
  explicit Terminal(int descriptor) : descriptor_(descriptor) {}
  /// Standard error of the process, which all ranks in it share: log lines and bars meet there.
  static Terminal& standard_error();

  [[nodiscard]] bool is_terminal() const;
  /// Letters in a line; 80 where the descriptor cannot tell.
  [[nodiscard]] int width() const;
  void write_line(std::string_view line);

  /// A bar's place on the terminal. Its destructor leaves what was drawn last as a line that scrolls, or nothing.
  class Bar {
   public:
    ~Bar();
    Bar(const Bar&) = delete;
    Bar& operator=(const Bar&) = delete;
    void draw(std::string text);
    /// What becomes of it in the end.
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
