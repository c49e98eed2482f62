#include "reference/terminal/terminal.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace accel::terminal {
namespace {

// Errors are ignored: a log that cannot be written must not end a training run.
void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const auto written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

Terminal& Terminal::standard_error() {
  // Process-wide like the descriptor that it represents.
  static Terminal terminal(STDERR_FILENO);
  return terminal;
}

bool Terminal::is_terminal() const { return isatty(descriptor_) != 0; }

// Asked for each time, because the user may resize the window.
int Terminal::width() const {
  winsize size{};
  return ioctl(descriptor_, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// Returns the escape sequence that erases all bars. The cursor is after the last bar; the sequence moves it to the
// start of the first one and clears everything below. Requires mutex_.
std::string Terminal::erased() {
  const int lines = std::exchange(lines_drawn_, 0);
  if (lines == 0) return "";
  return (lines > 1 ? "\x1b[" + std::to_string(lines - 1) + "A" : "") + "\r\x1b[J";
}

// Returns the text of all bars and counts their lines for the next call of erased(). Requires mutex_.
std::string Terminal::drawn() {
  std::string text;
  for (const auto* bar : bars_) {
    if (bar->text_.empty()) continue;
    text += (lines_drawn_++ == 0 ? "" : "\n") + bar->text_;
  }
  return text;
}

// Erasing, the line and the bars go into one write call, so that output of other processes cannot appear in
// between.
void Terminal::write_line(std::string_view line) {
  const std::lock_guard lock(mutex_);
  auto text = erased() + std::string(line) + "\n";
  text += drawn();
  write_all(descriptor_, text);
}

std::unique_ptr<Terminal::Bar> Terminal::add_bar() {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<Bar> bar(new Bar(*this));
  bars_.push_back(bar.get());
  return bar;
}

// All bars are redrawn, because the cursor can only be moved relative to the end of the last one.
void Terminal::Bar::draw(std::string text) {
  const std::lock_guard lock(terminal_.mutex_);
  text_ = std::move(text);
  auto all = terminal_.erased();
  all += terminal_.drawn();
  write_all(terminal_.descriptor_, all);
}

void Terminal::Bar::keep(bool leave) {
  const std::lock_guard lock(terminal_.mutex_);
  leave_ = leave;
}

// A bar that stays becomes an ordinary line above the remaining bars.
Terminal::Bar::~Bar() {
  const std::lock_guard lock(terminal_.mutex_);
  auto all = terminal_.erased();
  std::erase(terminal_.bars_, this);
  if (leave_ && !text_.empty()) all += text_ + "\n";
  all += terminal_.drawn();
  write_all(terminal_.descriptor_, all);
}

}  // namespace accel::terminal
