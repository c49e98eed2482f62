#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace accel::bench {

using Json = nlohmann::ordered_json;

/// The command line of a benchmark, and the output of its numbers.
///
///     Program program("launch_bench", "Measures the time from ...");
///     program.add("--rounds", rounds, "Number of rounds; reports the median");
///     if (const auto code = program.parse(argc, argv)) return *code;
///     return program.report([&] { return measure(rounds); });
class Program {
 public:
  /// `out_option` is the option that names a file for the numbers.
  Program(const std::string& name, const std::string& description, const std::string& out_option = "--out");
  ~Program();

  /// Adds an option. `value` is its default, and holds the parsed value after `parse`.
  void add(const std::string& option, std::string& value, const std::string& help);
  void add(const std::string& option, int& value, const std::string& help);  ///< at least 1
  void add(const std::string& option, std::vector<std::string>& values, const std::vector<std::string>& choices,
           const std::string& help);

  /// Parses the command line. Returns an exit code if the program must end: after --help, for a wrong option, or for a
  /// file that cannot be written; errors are printed on standard error. Arguments that the program does not define are
  /// stored in `others` if given, and are errors otherwise.
  std::optional<int> parse(int argc, char** argv, std::vector<std::string>* others = nullptr);

  /// The file for the numbers; "" if none was given.
  [[nodiscard]] const std::string& out() const { return out_; }

  /// Prints the result of `measure` by `print`, or as JSON, and writes it as JSON to `out`. Returns the exit code.
  /// Prints the message of an exception on standard error.
  int report(const std::function<Json()>& measure, const std::function<void(const Json&)>& print = nullptr) const;

 private:
  std::string name_, out_option_, out_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace accel::bench
