#pragma once

#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <vector>

namespace accel::programs {

/// Asks a person: arrow keys on a terminal, plain numbered lines elsewhere.
///
///     Prompt prompt(STDIN_FILENO, std::cout);
///     const auto type = prompt.choose("Which type of machine are you using?",
///                                     {"No distributed training", "multi-CPU"});
///     const auto ranks = prompt.ask_integer("How many processes?", 1, [](auto n) { return n >= 1; }, "1 or more");
///
/// A wrong answer is asked again, with what was expected; an empty one is the default. Where the input ends, a
/// ConfigError says at which question. Ctrl-C leaves the terminal as it was, and throws Interrupted. Thread rule: one
/// thread. Source: accelerate/commands/menu/selection_menu.py, commands/config/config_utils.py.
class Prompt {
 public:
  class Interrupted : public std::exception {};

  Prompt(int descriptor, std::ostream& out) : descriptor_(descriptor), out_(out) {}

  /// The index of the chosen one. On a terminal: up, down, k, j, a digit; enter takes it. Else: its number from 0, or
  /// its name.
  std::size_t choose(const std::string& question, const std::vector<std::string>& options, std::size_t fallback = 0);

  bool ask_flag(const std::string& question, bool fallback);
  std::int64_t ask_integer(const std::string& question, std::optional<std::int64_t> fallback,
                           const std::function<bool(std::int64_t)>& check, const std::string& expected);
  double ask_number(const std::string& question, double fallback);
  /// Without a fallback an answer is required.
  std::string ask_text(const std::string& question, const std::optional<std::string>& fallback,
                       const std::function<bool(const std::string&)>& check = nullptr,
                       const std::string& expected = "an answer");

  void say(const std::string& text);

 private:
  /// Asks until `convert` gives a value.
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
