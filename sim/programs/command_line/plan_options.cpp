#include "sim/programs/command_line/plan_options.hpp"

#include <CLI/CLI.hpp>
#include <optional>

namespace accel::programs {
namespace {

CLI::Option* add_flag(CLI::App& app, const Field& field, bool& value) {
  return app.add_flag(field.flag, value, field.help);
}

// A required flag has no meaningful default, so the help shows none for it.
template <typename T>
CLI::Option* add_flag(CLI::App& app, const Field& field, T& value) {
  auto* option = app.add_option(field.flag, value, field.help);
  return field.is_required ? option : option->capture_default_str();
}

template <typename T>
CLI::Option* add_flag(CLI::App& app, const Field& field, std::optional<T>& value) {
  return app.add_option(field.flag, value, field.help);
}

// Visitor that registers one flag per field of a request, so that `sim-run plan`, `accel data-check` and JSON requests
// cannot drift apart.
class FlagAdder {
 public:
  explicit FlagAdder(CLI::App& app) : app_(app) {}
  template <typename T>
  void operator()(const Field& field, T& value) {
    const auto* option = add_flag(app_, field, value);
    if (field.is_required) required_.push_back(option);
  }
  [[nodiscard]] const std::vector<const CLI::Option*>& required() const { return required_; }

 private:
  CLI::App& app_;
  std::vector<const CLI::Option*> required_;
};

}  // namespace

std::vector<const CLI::Option*> add_loader_options(CLI::App& app, PlanRequest& request) {
  FlagAdder add(app);
  for_each_loader_field(request, add);
  return add.required();
}

std::vector<const CLI::Option*> add_plan_options(CLI::App& app, PlanRequest& request) {
  FlagAdder add(app);
  for_each_field(request, add);
  return add.required();
}

}  // namespace accel::programs
