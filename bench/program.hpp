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

/// A benchmark's command line, and where its numbers go.
///
///     Program program("launch_bench", "Measures from ...");
///     program.add("--rounds", rounds, "The median counts");
///     if (const auto code = program.parse(argc, argv)) return *code;
///     return program.report([&] { return measure(rounds); });
class Program {
 public:
  /// `out_option` names a file for the numbers.
  Program(const std::string& name, const std::string& description, const std::string& out_option = "--out");
  ~Program();

  /// Options; `value` is the default until `parse`.
  void add(const std::string& option, std::string& value, const std::string& help);
  void add(const std::string& option, int& value, const std::string& help);  ///< at least 1
  void add(const std::string& option, std::vector<std::string>& values, const std::vector<std::string>& choices,
           const std::string& help);

  /// Nothing, or the exit code that the program ends with here: after --help, or for an option that is wrong or a file
  /// that cannot be written, which standard error tells. With `others` given, what is no option of the program goes
  /// there.
  std::optional<int> parse(int argc, char** argv, std::vector<std::string>* others = nullptr);

  /// The file for the numbers; "" if none was asked for.
  [[nodiscard]] const std::string& out() const { return out_; }

  /// Prints what `measure` returns, as `print` does it or as JSON, and writes it to `out`. Returns the exit code: an
  /// exception is told on standard error.
  int report(const std::function<Json()>& measure, const std::function<void(const Json&)>& print = nullptr) const;

 private:
  std::string name_, out_option_, out_;
  std::unique_ptr<CLI::App> app_;
};

}  // namespace accel::bench
