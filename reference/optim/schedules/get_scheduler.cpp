#include "reference/optim/schedules/get_scheduler.hpp"

#include <fmt/ranges.h>

#include <set>

#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/optim/schedules/schedule_state.hpp"
#include "reference/optim/schedules/schedules.hpp"

// Fills a schedule's options from named arguments, by the list of fields of the options: a schedule that is added to
// kSchedules needs no code here.
namespace accel {
namespace {

// Returns false if the value has another type.
template <typename T>
bool read_argument(const Value& value, T& target) {
  return optim::read_state(value, target);
}
template <typename T>
bool read_argument(const Value& value, std::optional<T>& target) {
  return value.is_null() || optim::read_state(value, target.emplace());
}
// A number for all parameter groups, or a list with one number per group.
bool read_argument(const Value& value, PerGroup& target) {
  double number = 0.0;
  std::vector<double> numbers;
  if (optim::read_state(value, number)) {
    target = number;
  } else if (optim::read_state(value, numbers)) {
    target = numbers;
  } else {
    return false;
  }
  return true;
}

// The named arguments of one call. Collects problems, so that one message reports all of them.
class Arguments {
 public:
  Arguments(const std::string& name, const GetSchedulerOptions& options) : name_(name), options_(options) {}

  /// Reads the argument for a field into `target` if it was passed.
  template <typename Field, typename T>
  void read(const Field& field, T& target) {
    const std::string key = field.name;
    if constexpr (std::same_as<T, int> || std::same_as<T, std::optional<int>>) {
      if (key == "num_warmup_steps") return read_steps(key, options_.num_warmup_steps, target);
      if (key == "num_training_steps") return read_steps(key, options_.num_training_steps, target);
    }
    known_.insert(key);
    const auto given = options_.scheduler_specific_kwargs.find(key);
    if (given != options_.scheduler_specific_kwargs.end()) {
      if (!read_argument(given->second, target))
        problems_.push_back(fmt::format("{}: unsupported type {}; expected the type of this schedule option", key,
                                        given->second.type_name()));
    } else if (field.presence == optim::Presence::kRequired) {
      add_missing(key);
    }
  }

  void finish() {
    for (const auto& [key, value] : options_.scheduler_specific_kwargs) {
      if (!known_.contains(key))
        problems_.push_back(fmt::format("{}: not an argument of this schedule; expected {}", key,
                                        known_.empty() ? "none" : fmt::to_string(fmt::join(known_, ", "))));
    }
    check_argument(problems_.empty(), "get_scheduler: {}: {}", name_, listed(problems_, "; "));
  }

 private:
  void add_missing(const std::string& key) { problems_.push_back(key + ": missing; this schedule requires it"); }

  // The two numbers of steps are parameters of get_scheduler itself, not of scheduler_specific_kwargs. Schedules that
  // do not use one of them ignore it, as in Python.
  void read_steps(const std::string& key, const std::optional<int>& given, int& target) {
    if (!given) add_missing(key);
    target = given.value_or(0);
  }
  void read_steps(const std::string& /*key*/, const std::optional<int>& given, std::optional<int>& target) {
    target = given;
  }

  const std::string& name_;
  const GetSchedulerOptions& options_;
  std::set<std::string> known_;
  std::vector<std::string> problems_;
};

template <typename Entry>
std::unique_ptr<LRScheduler> make(const Entry& entry, const ScheduledOptimizer& optimizer, Arguments& arguments) {
  typename Entry::Options options;
  optim::for_each_field<typename Entry::Options>(
      [&](const auto& field) { arguments.read(field, options.*field.member); });
  // Python's `constant` ignores all arguments, including unknown ones.
  if constexpr (!std::same_as<typename Entry::Options, ConstantOptions>) arguments.finish();
  return entry.make(optimizer, options);
}

}  // namespace

std::unique_ptr<LRScheduler> get_scheduler(const std::string& name, const ScheduledOptimizer& optimizer,
                                           const GetSchedulerOptions& options) {
  std::unique_ptr<LRScheduler> scheduler;
  // Collected on the way for the error message.
  std::set<std::string> names;
  optim::for_each_schedule<&optim::ScheduleNames::transformers>([&](const char* known, const auto& entry) {
    names.insert(known);
    if (name != known) return;
    Arguments arguments(name, options);
    scheduler = make(entry, optimizer, arguments);
  });
  check_argument(scheduler != nullptr, "get_scheduler: name: expected one of {}, got '{}'", fmt::join(names, ", "),
                 name);
  return scheduler;
}

}  // namespace accel
