// Builds optimizers and schedules from the "optimizer" and "scheduler" sections of a DeepSpeed file. Option names and
// defaults come from the tables in reference/optim, so a new optimizer or schedule needs no code here. All problems of
// a section are collected and thrown in one ConfigError.
#include "reference/accelerator/deepspeed_objects.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "reference/config/field_reader.hpp"
#include "reference/config/plugins/deepspeed_file.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/listed.hpp"
#include "reference/core/integers.hpp"
#include "reference/core/letter_case.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/schedules.hpp"

namespace accel {
namespace {

// Reads the parameters of a section by name. finish() reports every parameter that was never read as unknown, so each
// reader must be asked for all the parameters that its type supports, including those whose value is ignored.
class SectionReader {
 public:
  SectionReader(const DeepSpeedSection& section, std::string path, std::map<std::string, double> fills)
      : section_(section), path_(std::move(path)), fills_(std::move(fills)) {}

  void operator()(const std::string& name, double& number) {
    asked_.insert(name);
    if (section_.automatic.contains(name)) {
      const auto fill = fills_.find(name);
      if (fill == fills_.end())
        return problem(name, "\"auto\" cannot be resolved: the program does not set a value; expected a number");
      number = fill->second;
    } else if (const auto given = section_.numbers.find(name); given != section_.numbers.end()) {
      number = given->second;
    } else if (section_.lists.contains(name) || section_.texts.contains(name)) {
      problem(name, fmt::format("expected a number, got {}", parameter_text(section_, name)));
    }
  }
  void operator()(const std::string& name, int& number) {
    double value = number;
    (*this)(name, value);
    // JSON numbers are doubles: 1e3 is a valid integer, and the bound keeps the cast below in range.
    if (value != std::floor(value) || std::abs(value) > 1e9)
      return problem(name, fmt::format("expected a whole number, got {}", value));
    number = static_cast<int>(value);
  }
  template <typename T>
  void operator()(const std::string& name, std::optional<T>& value) {
    asked_.insert(name);
    if (has(name)) (*this)(name, value.emplace());
  }
  void operator()(const std::string& name, bool& flag) {
    double value = flag ? 1 : 0;
    (*this)(name, value);
    flag = value != 0;
  }
  template <typename... Number>
  void operator()(const std::string& name, std::tuple<Number...>& numbers) {
    asked_.insert(name);
    const auto list = section_.lists.find(name);
    if (list != section_.lists.end() && list->second.size() == sizeof...(Number)) {
      auto next = list->second.begin();
      std::apply([&](auto&... number) { ((number = *next++), ...); }, numbers);
    } else if (has(name)) {
      problem(name, fmt::format("expected a list of {} numbers, got {}", sizeof...(Number) == 2 ? "two" : "three",
                                parameter_text(section_, name)));
    }
  }
  void operator()(const std::string& name, std::string& text) {
    asked_.insert(name);
    if (const auto given = section_.texts.find(name); given != section_.texts.end()) text = given->second;
  }
  [[nodiscard]] bool has(const std::string& name) const { return parameters_of(section_).contains(name); }
  void problem(const std::string& name, const std::string& text) {
    problems_.push_back(fmt::format("{}.params.{}: {}", path_, name, text));
  }
  /// Throws ConfigError with all problems.
  void finish(const std::string& file) {
    for (const auto& name : parameters_of(section_)) {
      if (!asked_.contains(name))
        problem(name,
                fmt::format("unknown parameter of {}; expected one of {}", section_.type, fmt::join(asked_, ", ")));
    }
    check_config(problems_.empty(), "{}: {}", file, listed(problems_, "; "));
  }

 private:
  const DeepSpeedSection& section_;
  std::string path_;
  std::map<std::string, double> fills_;
  std::set<std::string> asked_;
  std::vector<std::string> problems_;
};

// `skip` names options of ours that DeepSpeed's optimizer lacks; a file that sets one of them is rejected.
// `problems_of` runs before `finish` so that wrong values and unknown names are reported together.
template <typename Options>
std::unique_ptr<torch::optim::Optimizer> make(const DummyOptim& dummy, SectionReader& reader, const std::string& file,
                                              Options options, const std::set<std::string>& skip = {}) {
  optim::for_each_option(options, [&](const std::string& name, auto& value) {
    if (!skip.contains(name)) reader(name, value);
  });
  for (const auto& [name, text] : problems_of(options)) reader.problem(name, text);
  reader.finish(file);
  return std::make_unique<optim::MultiTensorOptimizer<Options>>(dummy.params, options);
}

// DeepSpeed's "Adam" decouples weight decay (AdamW) unless adam_w_mode is false. The default decay of 0.01 applies only
// with torch_adam, where DeepSpeed uses torch.optim.AdamW and its default. Source: deepspeed/runtime/engine.py,
// _configure_basic_optimizer.
std::unique_ptr<torch::optim::Optimizer> make_adam(const DummyOptim& dummy, SectionReader& reader,
                                                   const std::string& file, bool is_adamw) {
  bool adam_w_mode = true, torch_adam = false, bias_correction = true;
  reader("adam_w_mode", adam_w_mode);
  reader("torch_adam", torch_adam);
  reader("bias_correction", bias_correction);
  if (!bias_correction) reader.problem("bias_correction", "false is unsupported; expected true");
  const bool decouples = is_adamw || adam_w_mode;
  optim::AdamOptions options{.weight_decay = torch_adam && decouples ? 0.01 : 0.0, .decoupled_weight_decay = decouples};
  return make(dummy, reader, file, options, {"decoupled_weight_decay", "maximize"});
}

template <typename Options>
std::unique_ptr<torch::optim::Optimizer> make_if_named(const optim::OptimizerEntry<Options>& entry,
                                                       const DeepSpeedSection& section, const DummyOptim& dummy,
                                                       const std::string& file) {
  // DeepSpeed compares the names of its own optimizers in lower case and looks up all others in torch.optim as written.
  const bool is_named = entry.deepspeed != nullptr &&
                        (section.type == entry.deepspeed ||
                         (entry.deepspeed_in_any_case && lower_case(section.type) == lower_case(entry.deepspeed)));
  if (!is_named) return nullptr;
  SectionReader reader(section, "optimizer", {{"lr", dummy.lr}, {"weight_decay", dummy.weight_decay}});
  constexpr bool kIsAdamW = std::same_as<Options, optim::AdamWOptions>;
  if constexpr (kIsAdamW || std::same_as<Options, optim::AdamOptions>) {
    return make_adam(dummy, reader, file, kIsAdamW);
  } else if constexpr (std::same_as<Options, optim::LionOptions>) {
    // DeepSpeed has its own Lion, with other defaults. Source: deepspeed/ops/lion/fused_lion.py.
    return make(dummy, reader, file, optim::LionOptions{.lr = 1e-3, .betas = {0.9, 0.999}});
  } else {
    return make(dummy, reader, file, Options());
  }
}

std::string known_optimizers() {
  std::vector<const char*> names;
  optim::for_each_optimizer([&](const auto& entry) {
    if (entry.deepspeed != nullptr) names.push_back(entry.deepspeed);
  });
  return any_of(names);
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const DeepSpeedSection& section, const DummyOptim& dummy,
                                                        const std::string& file) {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  optim::for_each_optimizer([&](const auto& entry) {
    if (optimizer == nullptr) optimizer = make_if_named(entry, section, dummy, file);
  });
  check_config(optimizer != nullptr, "{}: optimizer.type: '{}' is unsupported; expected {}", file, section.type,
               known_optimizers());
  return optimizer;
}

// Our schedules restore their position from a checkpoint. Honouring a start position as well would apply it twice.
void read_last_batch_iteration(SectionReader& reader) {
  int last_batch_iteration = -1;
  reader("last_batch_iteration", last_batch_iteration);
  if (last_batch_iteration != -1)
    reader.problem("last_batch_iteration",
                   fmt::format("{}: expected -1; load a checkpoint to resume", last_batch_iteration));
}

template <typename Options>
Options read_schedule(SectionReader& reader) {
  Options options;
  optim::for_each_field<Options>([&](const auto& field) {
    if (field.presence == optim::Presence::kRequired && !reader.has(field.name))
      reader.problem(field.name, "is missing; expected a number or \"auto\"");
    reader(field.name, options.*field.member);
  });
  for (const auto& [name, text] : optim::problems_of(options)) reader.problem(name, text);
  return options;
}

std::unique_ptr<LRScheduler> make_scheduler(const DeepSpeedSection& section, torch::optim::Optimizer& optimizer,
                                            const std::map<std::string, double>& fills, const std::string& file) {
  std::unique_ptr<LRScheduler> scheduler;
  optim::for_each_schedule<&optim::ScheduleNames::deepspeed>(
      [&]<typename Entry>(const std::string& type, const Entry& entry) {
        if (section.type != type) return;
        SectionReader reader(section, "scheduler", fills);
        read_last_batch_iteration(reader);
        const auto options = read_schedule<typename Entry::Options>(reader);
        reader.finish(file);
        scheduler = entry.make(optimizer, options);
      });
  // scheduler_section() has already rejected unknown types, with the list of the known ones.
  ensure(scheduler != nullptr, "{}: scheduler.type '{}' passed validation but has no factory", file, section.type);
  return scheduler;
}

// Reads a section of the file, and turns "no file" and "no such section" into one error.
DeepSpeedSection section_of(const std::string& file, const char* name, const char* dummy,
                            std::optional<DeepSpeedSection> (*read)(const std::string&)) {
  auto section = file.empty() ? std::nullopt : read(file);
  check_config(section.has_value(),
               "{}: no DeepSpeed file defines {}; set deepspeed_plugin.hf_ds_config to a file that does", dummy, name);
  return *section;
}

}  // namespace

torch::optim::Optimizer& DeepSpeedObjects::optimizer_for(const DummyOptim& dummy, const std::string& file) {
  // Looked up by address: `prepare(dummy)` and a DummyScheduler of the same dummy must get the same optimizer, in
  // either order.
  const auto known =
      std::find_if(optimizers_.begin(), optimizers_.end(), [&](const Made& made) { return made.dummy == &dummy; });
  if (known != optimizers_.end()) return *known->optimizer;
  const auto section = section_of(file, "an optimizer", "DummyOptim", optimizer_section);
  return *optimizers_.emplace_back(&dummy, make_optimizer(section, dummy, file)).optimizer;
}

LRScheduler& DeepSpeedObjects::scheduler_for(const DummyScheduler& dummy, const std::string& file,
                                             int num_batches_per_step) {
  auto& optimizer = dummy.dummy() != nullptr ? optimizer_for(*dummy.dummy(), file) : *dummy.optimizer();
  const auto& options = dummy.options();
  if (options.lr_scheduler_callable) return *schedulers_.emplace_back(options.lr_scheduler_callable(optimizer));
  const auto section = section_of(file, "a scheduler", "DummyScheduler", scheduler_section);
  // The values for "auto", as accelerate/accelerator.py, _prepare_deepspeed, fills them.
  std::map<std::string, double> fills{
      {"warmup_min_lr", 0},
      {"warmup_max_lr", dummy.dummy() != nullptr ? dummy.dummy()->lr : optimizer.defaults().get_lr()},
      {"warmup_num_steps", options.warmup_num_steps}};
  if (options.total_num_steps)
    // The program counts batches as with an unprepared schedule; DeepSpeed's schedule counts optimizer steps.
    fills["total_num_steps"] = static_cast<double>(divide_up(*options.total_num_steps, num_batches_per_step));
  return *schedulers_.emplace_back(make_scheduler(section, optimizer, fills, file));
}

}  // namespace accel
