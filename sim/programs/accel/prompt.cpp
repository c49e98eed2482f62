// Questions on a terminal. Input is read from the descriptor byte by byte and never buffered: a buffered stream would
// swallow answers that a script has piped in for later questions, and keys that arrive while a menu is drawn.
#include "sim/programs/accel/prompt.hpp"

#include <fmt/format.h>
#include <termios.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cmath>
#include <iostream>

#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {
namespace {

constexpr char kControlC = 3, kControlD = 4, kEscape = 27;

// Switches the terminal to single keys without echo, and back on destruction. ISIG is off as well, so that Ctrl-C
// arrives as a key and cannot end the process with the terminal in this mode.
class RawTerminalMode {
 public:
  explicit RawTerminalMode(int descriptor) : descriptor_(descriptor) {
    tcgetattr(descriptor_, &before_);
    auto mode = before_;
    mode.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO | ISIG);
    tcsetattr(descriptor_, TCSADRAIN, &mode);
  }
  ~RawTerminalMode() { tcsetattr(descriptor_, TCSADRAIN, &before_); }
  RawTerminalMode(const RawTerminalMode&) = delete;
  RawTerminalMode& operator=(const RawTerminalMode&) = delete;

 private:
  int descriptor_;
  termios before_{};
};

// Returns the next byte, or nothing at the end of the input.
std::optional<char> next_byte(int descriptor) {
  char byte = 0;
  ssize_t count = 0;
  do count = read(descriptor, &byte, 1);
  while (count < 0 && errno == EINTR);
  return count == 1 ? std::optional(byte) : std::nullopt;
}

enum class Key { kUp, kDown, kEnter, kDigit, kInterrupt, kEnd, kOther };
struct PressedKey {
  Key key;
  std::size_t digit = 0;
};

Key arrow_of(std::optional<char> byte) {
  return byte == 'A' ? Key::kUp : byte == 'B' ? Key::kDown : byte ? Key::kOther : Key::kEnd;
}

// Decodes one key. An arrow arrives as ESC [ A, or as ESC O A in a terminal's application mode; a single ESC is
// ignored.
PressedKey next_key(int descriptor) {
  auto byte = next_byte(descriptor);
  if (byte == kEscape) {
    byte = next_byte(descriptor);
    if (byte == '[' || byte == 'O') return {arrow_of(next_byte(descriptor))};
  }
  if (!byte || *byte == kControlD) return {Key::kEnd};
  if (*byte == kControlC) return {Key::kInterrupt};
  if (*byte == '\n' || *byte == '\r') return {Key::kEnter};
  if (*byte >= '0' && *byte <= '9') return {Key::kDigit, static_cast<std::size_t>(*byte - '0')};
  return {*byte == 'k' ? Key::kUp : *byte == 'j' ? Key::kDown : Key::kOther};
}

template <typename T>
std::optional<T> number_of(const std::string& text) {
  T value{};
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && stop == text.data() + text.size() ? std::optional(value) : std::nullopt;
}

std::string without_surrounding_blanks(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r");
  return first == std::string::npos ? "" : text.substr(first, text.find_last_not_of(" \t\r") - first + 1);
}

}  // namespace

void Prompt::say(const std::string& text) { out_ << text << std::endl; }

// A partial last line without a line feed counts as the end of the input: the answer may be incomplete.
std::string Prompt::read_line(const std::string& question) {
  out_ << std::flush;
  std::string line;
  for (auto byte = next_byte(descriptor_); byte != '\n'; byte = next_byte(descriptor_)) {
    check_config(byte.has_value(), "the input ended before the answer to: {}", question);
    line += *byte;
  }
  return without_surrounding_blanks(line);
}

// Questions of all types share this loop. `shown` is the default as the user would type it.
template <typename T>
T Prompt::ask(const std::string& question, const std::optional<T>& fallback, const std::string& shown,
              const std::function<std::optional<T>(const std::string&)>& convert, const std::string& expected) {
  for (;;) {
    out_ << question << (shown.empty() ? "" : " [" + shown + "]") << ": ";
    const auto answer = read_line(question);
    if (answer.empty() && fallback) return *fallback;
    if (const auto value = convert(answer)) return *value;
    say(fmt::format("Please enter {}.", expected));
  }
}

bool Prompt::ask_flag(const std::string& question, bool fallback) {
  return ask<bool>(question, fallback, fallback ? "YES/no" : "yes/NO", flag_of, "yes or no");
}

std::int64_t Prompt::ask_integer(const std::string& question, std::optional<std::int64_t> fallback,
                                 const std::function<bool(std::int64_t)>& check, const std::string& expected) {
  const auto convert = [&](const std::string& text) {
    const auto number = number_of<std::int64_t>(text);
    return number && check(*number) ? number : std::nullopt;
  };
  return ask<std::int64_t>(question, fallback, fallback ? std::to_string(*fallback) : "", convert, expected);
}

// from_chars accepts "inf" and "nan", which no setting can be.
double Prompt::ask_number(const std::string& question, double fallback) {
  const auto convert = [](const std::string& text) {
    const auto number = number_of<double>(text);
    return number && std::isfinite(*number) && *number >= 0 ? number : std::nullopt;
  };
  return ask<double>(question, fallback, fmt::format("{:.1f}", fallback), convert, "a number of 0 or more");
}

// An empty answer never reaches `check`: it selects the default, or is asked again if there is none.
std::string Prompt::ask_text(const std::string& question, const std::optional<std::string>& fallback,
                             const std::function<bool(const std::string&)>& check, const std::string& expected) {
  const auto convert = [&](const std::string& text) {
    return !text.empty() && (!check || check(text)) ? std::optional(text) : std::nullopt;
  };
  return ask<std::string>(question, fallback, fallback.value_or(""), convert, expected);
}

// Leaves the question and the chosen option on the screen, so that the finished dialogue can be read.
std::size_t Prompt::choose(const std::string& question, const std::vector<std::string>& options, std::size_t fallback) {
  if (isatty(descriptor_) == 0) return choose_by_number(question, options, fallback);
  say(question);
  const auto chosen = choose_by_keys(options, fallback);
  say(options.at(chosen));
  return chosen;
}

// Without a terminal, names are accepted as well as numbers, so that scripts survive new options in the menu.
std::size_t Prompt::choose_by_number(const std::string& question, const std::vector<std::string>& options,
                                     std::size_t fallback) {
  auto menu = question + "\n";
  for (std::size_t index = 0; index < options.size(); ++index) menu += fmt::format("  {}: {}\n", index, options[index]);
  const auto convert = [&](const std::string& text) -> std::optional<std::size_t> {
    if (const auto number = number_of<std::size_t>(text)) return *number < options.size() ? number : std::nullopt;
    for (std::size_t index = 0; index < options.size(); ++index) {
      if (options[index] == text) return index;
    }
    return std::nullopt;
  };
  return ask<std::size_t>(menu + "Number", fallback, std::to_string(fallback), convert,
                          fmt::format("0 to {}", options.size() - 1));
}

// Redraws in place: each line is cleared first, because options differ in length.
void Prompt::draw(const std::vector<std::string>& options, std::size_t chosen) {
  for (std::size_t index = 0; index < options.size(); ++index)
    out_ << "\r\x1b[2K" << (index == chosen ? " \u279c  " : "    ") << options[index] << '\n';
  out_ << std::flush;
}

std::size_t Prompt::choose_by_keys(const std::vector<std::string>& options, std::size_t chosen) {
  const RawTerminalMode mode(descriptor_);
  const auto up = fmt::format("\x1b[{}A", options.size());
  draw(options, chosen);
  for (;;) {
    const auto [key, digit] = next_key(descriptor_);
    // RawTerminalMode's destructor restores the terminal when this throws.
    if (key == Key::kInterrupt) throw Interrupted();
    check_config(key != Key::kEnd, "the input ended before an option was chosen");
    if (key == Key::kEnter) break;
    if (key == Key::kUp) chosen = (chosen + options.size() - 1) % options.size();
    if (key == Key::kDown) chosen = (chosen + 1) % options.size();
    if (key == Key::kDigit && digit < options.size()) chosen = digit;
    out_ << up;
    draw(options, chosen);
  }
  out_ << up << "\x1b[J";  // clears the menu; the caller prints the chosen option
  return chosen;
}

}  // namespace accel::programs
