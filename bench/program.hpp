#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bench/rows.hpp"

namespace CLI {
class App;
}

namespace accel::bench {

/// The command line of a benchmark.
///
///     Program program("launch_bench", "Measures the time from ...");
///     program.add("--python", python, "Command that ...");
///     return program.run(argc, argv, [&] { return rows(python); });
class Program {
 public:
  Program(const std::string& name, const std::string& description);
  ~Program();

  /// Adds an option. `value` is its default, and holds the parsed value after `parse`.
  void add(const std::string& option, std::string& value, const std::string& help);
  void add(const std::string& option, int& value, const std::string& help);  ///< at least 1
  void add_flag(const std::string& option, bool& value, const std::string& help);

  /// Adds the option --out, which names a file for the numbers.
  void add_out();

  /// Parses the command line. Returns an exit code if the program must end: after --help, for a wrong option, or for a
  /// file that cannot be written; errors are printed on standard error. Arguments that the program does not define are
  /// stored in `others` if given, and are errors otherwise.
  std::optional<int> parse(int argc, char** argv, std::vector<std::string>* others = nullptr);

  /// The file for the numbers; "" if none was given.
  [[nodiscard]] const std::string& out() const { return out_; }

  /// Runs `body` and returns its exit code. Prints the message of an exception on standard error.
  int guard(const std::function<int()>& body) const;

  /// The complete main function of a program that measures rows: parses the command line with the options of
  /// measure_rows and of Google Benchmark, takes the samples, prints a table and writes `out`. With --serve it answers
  /// requests for single samples instead (see serving.hpp). Returns the exit code.
  int run(int argc, char** argv, const std::function<Rows()>& make_rows);

 private:
  std::string name_, out_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace accel::bench
