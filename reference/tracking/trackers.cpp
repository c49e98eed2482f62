// Source: accelerate/tracking.py, filter_trackers, and accelerate/accelerator.py, init_trackers. Trackers are
// created in init_trackers and not in the constructor, because their options arrive only then.
#include "reference/tracking/trackers.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <string_view>
#include <utility>

#include "reference/config/nearest_name.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/state/rank_context.hpp"
#include "reference/tracking/built_in_trackers.hpp"

namespace accel {
namespace {

bool is_built_in(const std::string& name) {
  return std::ranges::find(kBuiltInTrackers, name, &BuiltInTracker::name) != std::end(kBuiltInTrackers);
}

// Accelerate's other trackers, and what to do in their place; "": log to a built-in one.
constexpr std::pair<std::string_view, std::string_view> kLacking[] = {
    {"wandb",
     "the format of its offline runs is undocumented, so log to tensorboard and upload the folder with `wandb sync "
     "--sync-tensorboard FOLDER`"},
    {"comet_ml", ""},
    {"aim", ""},
    {"clearml", ""},
    {"dvclive", ""},
    {"swanlab", ""},
    {"trackio", ""},
};

// "log to tensorboard, jsonl or csv", with all names.
std::string log_to_a_built_in_one() {
  std::vector<std::string> names;
  for (const auto& tracker : kBuiltInTrackers) names.emplace_back(tracker.name);
  const auto last = names.back();
  names.pop_back();
  return fmt::format("log to {} or {}", fmt::join(names, ", "), last);
}

std::string problem_of_name(const std::string& name) {
  for (const auto& [lacking, way_out] : kLacking) {
    if (name == lacking)
      return fmt::format("'{}' needs its Python package, which this library does not use; {}", name,
                         way_out.empty() ? log_to_a_built_in_one() : std::string(way_out));
  }
  return fmt::format("'{}' is not a tracker; expected {}, or an object", name, fmt::join(nearest_trackers(name), ", "));
}

// Returned by get_tracker on ranks where a tracker is inactive, so that programs need no check of the rank.
class BlankTracker final : public GeneralTracker {
 public:
  [[nodiscard]] std::string name() const override { return ""; }
  [[nodiscard]] bool requires_logging_directory() const override { return false; }
  void check_log_kwargs(const Value::Dict&) const override {}
  void log(const Value::Dict&, std::optional<std::int64_t>) override {}
  void log_table(const std::string&, const Table&, std::optional<std::int64_t>) override {}
  void log_figure(const at::Tensor&, const std::string&) override {}
  void log_artifact(const std::string&, const std::string&) override {}
  void log_artifacts(const std::string&, const std::string&) override {}
};

}  // namespace

void tracking::refuse_options(const std::string& tracker, const Value::Dict& kwargs,
                              std::vector<std::string>& problems) {
  for (const auto& [key, value] : kwargs)
    problems.push_back(fmt::format("{}: unexpected option {}; it has no options", tracker, key));
}

std::vector<std::string> nearest_trackers(const std::string& name) {
  std::vector<std::string> names;
  for (const auto& tracker : kBuiltInTrackers) names.emplace_back(tracker.name);
  names.emplace_back("all");
  std::stable_sort(names.begin(), names.end(),
                   [&](const auto& a, const auto& b) { return edit_distance(name, a) < edit_distance(name, b); });
  return names;
}

Trackers::Trackers(RankContext& context, const std::vector<LogWith>& log_with, std::optional<std::string> logging_dir)
    : context_(context), logging_dir_(logging_dir.value_or("")), blank_(std::make_shared<BlankTracker>()) {
  std::vector<std::string> problems;
  // The built-in trackers that "all" adds must not repeat those that are named too. User-defined objects are
  // never duplicates, even if their names are equal.
  const auto add = [&](Entry entry, bool needs_folder) {
    const bool is_there = std::any_of(entries_.begin(), entries_.end(),
                                      [&](const Entry& other) { return other.name == entry.name && !entry.tracker; });
    if (is_there) return;
    if (needs_folder && logging_dir_.empty())
      problems.push_back(
          fmt::format("{} writes files and requires a logging_dir; set logging_dir or project_dir", entry.name));
    entries_.push_back(std::move(entry));
  };
  for (const auto& item : log_with) {
    if (const auto* tracker = std::get_if<std::shared_ptr<GeneralTracker>>(&item)) {
      if (*tracker)
        add({.name = (*tracker)->name(), .tracker = *tracker}, (*tracker)->requires_logging_directory());
      else
        problems.emplace_back("a tracker is null; expected an object");
      continue;
    }
    const auto& name = std::get<std::string>(item);
    const bool is_all = name == "all";
    if (!is_all && !is_built_in(name)) problems.push_back(problem_of_name(name));
    for (const auto& built_in : kBuiltInTrackers) {
      if (name == built_in.name || (is_all && built_in.is_in_logging_dir))
        add({.name = built_in.name, .tracker = nullptr, .built_in = &built_in}, built_in.is_in_logging_dir);
    }
  }
  check_config(problems.empty(), "log_with: {}", listed(problems, "; "));
}

Trackers::~Trackers() = default;

bool Trackers::is_active(const GeneralTracker& tracker) const {
  return context_.rank == 0 || !tracker.main_process_only();
}

template <typename F>
void Trackers::for_each_active(F&& call) {
  for (auto& entry : entries_) {
    if (entry.tracker && is_active(*entry.tracker)) call(*entry.tracker);
  }
}

std::vector<std::string> Trackers::problems_of_kwargs(const Value::Dict& kwargs) const {
  std::vector<std::string> problems;
  for (const auto& [name, options] : kwargs) {
    const bool is_there = std::any_of(entries_.begin(), entries_.end(),
                                      [&, &wanted = name](const Entry& entry) { return entry.name == wanted; });
    if (!is_there)
      problems.push_back(fmt::format("{} is not in log_with; add it there, or remove its options", name));
    else if (!options.is<Value::Dict>())
      problems.push_back(
          fmt::format("{}: expected a dict of options, got a value of type {}", name, options.type_name()));
  }
  return problems;
}

void Trackers::init_trackers(const std::string& project_name, const std::optional<Value::Dict>& config,
                             const Value::Dict& init_kwargs) {
  check_state(!is_started_, "init_trackers: the trackers are already running; call end_training first");
  auto problems = problems_of_kwargs(init_kwargs);
  check_config(problems.empty(), "init_trackers: init_kwargs: {}", listed(problems, "; "));
  // Works on a copy until all checks have passed: a call that throws leaves the previous state, and every rank
  // throws, because inactive trackers check too.
  auto entries = entries_;
  for (auto& entry : entries) {
    if (entry.built_in == nullptr) continue;
    entry.tracker = entry.built_in->make(
        init_kwargs.contains(entry.name) ? init_kwargs.at(entry.name).as<Value::Dict>() : Value::Dict(), problems);
  }
  check_config(problems.empty(), "init_trackers: init_kwargs: {}", listed(problems, "; "));
  if (config) {
    for (const auto& entry : entries) entry.tracker->check_init_configuration(*config);
  }
  for (const auto& entry : entries)
    entry.tracker->check_start({context_, project_name, logging_dir_}, config.value_or(Value::Dict()));
  entries_ = std::move(entries);
  is_started_ = true;
  for_each_active([&](GeneralTracker& tracker) { tracker.start({context_, project_name, logging_dir_}); });
  if (config) for_each_active([&](GeneralTracker& tracker) { tracker.store_init_configuration(*config); });
}

void Trackers::log(const Value::Dict& values, std::optional<std::int64_t> step, const Value::Dict& log_kwargs) {
  if (!is_started_) return;  // as in Accelerate, whose list of trackers is empty before init_trackers
  for (const auto& entry : entries_) entry.tracker->check_log(values);
  const auto problems = problems_of_kwargs(log_kwargs);
  check_argument(problems.empty(), "log: log_kwargs: {}", listed(problems, "; "));
  for (const auto& entry : entries_) {
    if (log_kwargs.contains(entry.name)) entry.tracker->check_log_kwargs(log_kwargs.at(entry.name).as<Value::Dict>());
  }
  for_each_active([&](GeneralTracker& tracker) {
    if (log_kwargs.contains(tracker.name()))
      tracker.log_with_kwargs(values, step, log_kwargs.at(tracker.name()).as<Value::Dict>());
    else
      tracker.log(values, step);
  });
}

void Trackers::log_images(const std::map<std::string, at::Tensor>& values, std::optional<std::int64_t> step) {
  if (!is_started_) return;
  for_each_active([&](GeneralTracker& tracker) { tracker.log_images(values, step); });
}

// References stay valid until the next init_trackers, which replaces the built-in trackers.
GeneralTracker& Trackers::get_tracker(const std::string& name, const GetTrackerOptions& options) {
  std::vector<std::string> names;
  for (const auto& entry : entries_) {
    names.push_back(entry.name);
    if (entry.name != name || !entry.tracker || !is_started_) continue;
    if (!is_active(*entry.tracker)) return *blank_;
    return options.unwrap ? entry.tracker->tracker() : *entry.tracker;
  }
  check_argument(is_started_, "get_tracker: no tracker is running; call init_trackers first");
  throw ArgumentError(fmt::format("get_tracker: '{}' is not among the trackers of log_with: {}; expected one of them",
                                  name, fmt::join(names, ", ")));
}

// Finishes every tracker, also after an error: their files must be closed. Only the first error can be thrown.
void Trackers::end_training() {
  std::exception_ptr first;
  for_each_active([&](GeneralTracker& tracker) {
    try {
      if (is_started_) tracker.finish();
    } catch (...) {
      if (!first) first = std::current_exception();
    }
  });
  is_started_ = false;
  if (first) std::rethrow_exception(first);
}

}  // namespace accel
