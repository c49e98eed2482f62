#pragma once

#include <string>
#include <tuple>
#include <utility>
#include <vector>

/// What the option structs of optimizers share: a list of their arguments by Python's names, and the words for bad
/// values.
///
///     for_each_option(options, [](const char* name, auto& value) { ... });   // value: double, bool or NumberPair
///
/// One list serves state dicts, experiment files and messages. Thread rule: pure functions.
namespace accel::optim {

/// `betas`, `etas` and `step_sizes` of Python.
using NumberPair = std::tuple<double, double>;

template <typename Options, typename T>
struct OptionField {
  const char* name;
  T Options::*member;
};
template <typename Options, typename T>
OptionField(const char*, T Options::*) -> OptionField<Options, T>;

/// Calls `visit(name, value)` for every argument in `Options::fields()`.
template <typename Options, typename Visit>
void for_each_option(Options& options, Visit&& visit) {
  std::apply([&](const auto&... field) { (visit(field.name, options.*field.member), ...); },
             std::remove_const_t<Options>::fields());
}

/// An argument that Python answers with ValueError.
struct OptionProblem {
  std::string name = {}, text = {};
};

/// Collects the problems of one struct of options.
class OptionChecks {
 public:
  void expect(bool holds, const char* name, std::string text) {
    if (!holds) problems_.push_back({name, std::move(text)});
  }
  void at_least_zero(const char* name, double value);
  void betas(const NumberPair& betas);
  std::vector<OptionProblem> take() { return std::move(problems_); }

 private:
  std::vector<OptionProblem> problems_;
};

/// Throws one ArgumentError with all problems, if there are any.
void throw_problems(const std::string& optimizer, const std::vector<OptionProblem>& problems);

}  // namespace accel::optim
