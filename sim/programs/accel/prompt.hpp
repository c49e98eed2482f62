#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace accel::programs {

/// Asks questions: menus with arrow keys on a terminal, numbered lines elsewhere.
///
///     Prompt prompt(STDIN_FILENO, std::cout);
///     const auto type = prompt.choose("Which type of machine are you using?",
///                                     {"No distributed training", "multi-CPU"});
///     const auto ranks = prompt.ask_integer("How many processes?", 1, [](auto n) { return n >= 1; }, "1 or more");
///
/// After a wrong answer, prints what was expected and asks again. An empty answer selects the default. If the input
/// ends, throws ConfigError with the question. Ctrl-C restores the terminal and throws Interrupted. Thread rule: one
/// thread. Source: accelerate/commands/menu/selection_menu.py, commands/config/config_utils.py.
class Prompt {
 public:
  class Interrupted : public std::exception {};

  Prompt(int descriptor, std::ostream& out) : descriptor_(descriptor), out_(out) {}

  /// Returns the index of the chosen option. Keys on a terminal: up, down, k, j or a digit, then enter. Elsewhere the
  /// answer is the number, from 0, or the name of the option.
  std::size_t choose(const std::string& question, const std::vector<std::string>& options, std::size_t fallback = 0);

  bool ask_flag(const std::string& question, bool fallback);
  std::int64_t ask_integer(const std::string& question, std::optional<std::int64_t> fallback,
                           const std::function<bool(std::int64_t)>& check, const std::string& expected);
  double ask_number(const std::string& question, double fallback);
  /// Requires an answer if there is no fallback.
  std::string ask_text(const std::string& question, const std::optional<std::string>& fallback,
                       const std::function<bool(const std::string&)>& check = nullptr,
                       const std::string& expected = "an answer");

  void say(const std::string& text);

 private:
  /// Repeats the question until `convert` returns a value.
  template <typename T>
  T ask(const std::string& question, const std::optional<T>& fallback, const std::string& shown,
        const std::function<std::optional<T>(const std::string&)>& convert, const std::string& expected);
  std::string read_line(const std::string& question);
  std::size_t choose_by_keys(const std::vector<std::string>& options, std::size_t chosen);
  std::size_t choose_by_number(const std::string& question, const std::vector<std::string>& options,
                               std::size_t fallback);
  void draw(const std::vector<std::string>& options, std::size_t chosen);

  int descriptor_;
  std::ostream& out_;
};

}  // namespace accel::programs
