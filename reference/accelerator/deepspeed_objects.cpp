#include "reference/accelerator/deepspeed_objects.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "reference/config/deepspeed_file.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/integers.hpp"
#include "reference/core/letter_case.hpp"
#include "reference/optim/optimizers/optimizers.hpp"
#include "reference/optim/schedules/deepspeed_schedules.hpp"

namespace accel {
namespace {

// The parameters of a section, each asked for by its name: what nobody asked for, nobody knows.
class SectionReader {
 public:
  SectionReader(const DeepSpeedSection& section, std::string path, std::map<std::string, double> fills)
      : section_(section), path_(std::move(path)), fills_(std::move(fills)) {}

  void operator()(const std::string& name, double& number) {
    asked_.insert(name);
    if (section_.automatic.contains(name)) {
      const auto fill = fills_.find(name);
      if (fill == fills_.end()) return problem(name, "\"auto\": nothing in the program says it; expected a number");
      number = fill->second;
    } else if (const auto given = section_.numbers.find(name); given != section_.numbers.end()) {
      number = given->second;
    } else if (section_.lists.contains(name) || section_.texts.contains(name)) {
      problem(name, "expected a number");
    }
  }
  void operator()(const std::string& name, int& number) {
    double value = number;
    (*this)(name, value);
    if (value != std::floor(value) || std::abs(value) > 1e9)
      return problem(name, fmt::format("expected a whole number, got {}", value));
    number = static_cast<int>(value);
  }
  void operator()(const std::string& name, bool& flag) {
    double value = flag ? 1 : 0;
    (*this)(name, value);
    flag = value != 0;
  }
  void operator()(const std::string& name, optim::NumberPair& pair) {
    asked_.insert(name);
    const auto list = section_.lists.find(name);
    if (list != section_.lists.end() && list->second.size() == 2) {
      pair = {list->second[0], list->second[1]};
    } else if (has(name)) {
      problem(name, "expected a list of two numbers");
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
        problem(name, fmt::format("{} has no such parameter here; it has {}", section_.type, fmt::join(asked_, ", ")));
    }
    check_config(problems_.empty(), "{}: {}", file, fmt::join(problems_, "; "));
  }

 private:
  const DeepSpeedSection& section_;
  std::string path_;
  std::map<std::string, double> fills_;
  std::set<std::string> asked_;
  std::vector<std::string> problems_;
};

// `skip` names what DeepSpeed's optimizers do not take.
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

// DeepSpeed's "Adam" is AdamW, unless adam_w_mode says otherwise.
std::unique_ptr<torch::optim::Optimizer> make_adam(const DummyOptim& dummy, SectionReader& reader,
                                                   const std::string& file, bool is_adamw) {
  bool adam_w_mode = true, torch_adam = false, bias_correction = true;
  reader("adam_w_mode", adam_w_mode);
  reader("torch_adam", torch_adam);
  reader("bias_correction", bias_correction);
  if (!bias_correction) reader.problem("bias_correction", "false is not built");
  const bool decouples = is_adamw || adam_w_mode;
  optim::AdamOptions options{.weight_decay = torch_adam && decouples ? 0.01 : 0.0, .decoupled_weight_decay = decouples};
  return make(dummy, reader, file, options, {"decoupled_weight_decay", "maximize"});
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const DeepSpeedSection& section, const DummyOptim& dummy,
                                                        const std::string& file) {
  SectionReader reader(section, "optimizer", {{"lr", dummy.lr}, {"weight_decay", dummy.weight_decay}});
  const auto type = lower_case(section.type);
  if (type == "adam" || type == "adamw") return make_adam(dummy, reader, file, type == "adamw");
  if (type == "adagrad") return make(dummy, reader, file, optim::AdagradOptions());
  if (section.type == "SGD") return make(dummy, reader, file, optim::SGDOptions());
  if (section.type == "RMSprop") return make(dummy, reader, file, optim::RMSpropOptions());
  if (section.type == "Adadelta") return make(dummy, reader, file, optim::AdadeltaOptions());
  if (section.type == "Adamax") return make(dummy, reader, file, optim::AdamaxOptions());
  if (section.type == "NAdam") return make(dummy, reader, file, optim::NAdamOptions());
  if (section.type == "RAdam") return make(dummy, reader, file, optim::RAdamOptions());
  if (section.type == "Rprop") return make(dummy, reader, file, optim::RpropOptions());
  if (section.type == "ASGD") return make(dummy, reader, file, optim::ASGDOptions());
  throw ConfigError(
      fmt::format("{}: optimizer.type: '{}' is not built; expected Adam, AdamW, Adagrad, SGD, RMSprop, Adadelta, "
                  "Adamax, NAdam, RAdam, Rprop or ASGD",
                  file, section.type));
}

std::unique_ptr<LRScheduler> make_scheduler(const DeepSpeedSection& section, torch::optim::Optimizer& optimizer,
                                            const std::map<std::string, double>& fills, const std::string& file) {
  SectionReader reader(section, "scheduler", fills);
  int last_batch_iteration = -1;
  reader("last_batch_iteration", last_batch_iteration);
  if (last_batch_iteration != -1)
    reader.problem("last_batch_iteration",
                   fmt::format("{}: expected -1; load a checkpoint to go on", last_batch_iteration));
  const auto read_warmup = [&](auto& options) {
    reader("warmup_num_steps", options.warmup_num_steps);
    reader("warmup_type", options.warmup_type);
    if (options.warmup_num_steps < 1)
      reader.problem("warmup_num_steps", fmt::format("expected 1 or more, got {}", options.warmup_num_steps));
  };
  const auto read_total = [&](int& total) {
    if (!reader.has("total_num_steps")) reader.problem("total_num_steps", "is missing; expected a number or \"auto\"");
    reader("total_num_steps", total);
  };
  if (section.type == "WarmupLR") {
    WarmupLROptions options;
    double highest = optimizer.defaults().get_lr();
    read_warmup(options);
    reader("warmup_min_lr", options.warmup_min_lr);
    reader("warmup_max_lr", highest);
    if (reader.has("warmup_max_lr")) options.warmup_max_lr = highest;
    reader.finish(file);
    return std::make_unique<WarmupLR>(optimizer, options);
  }
  if (section.type == "WarmupDecayLR") {
    WarmupDecayLROptions options;
    read_warmup(options);
    read_total(options.total_num_steps);
    reader("warmup_min_lr", options.warmup_min_lr);
    reader("warmup_max_lr", options.warmup_max_lr);
    reader.finish(file);
    return std::make_unique<WarmupDecayLR>(optimizer, options);
  }
  WarmupCosineLROptions options;  // the file's reader knows no fourth
  read_warmup(options);
  read_total(options.total_num_steps);
  reader("warmup_min_ratio", options.warmup_min_ratio);
  reader("cos_min_ratio", options.cos_min_ratio);
  reader.finish(file);
  return std::make_unique<WarmupCosineLR>(optimizer, options);
}

DeepSpeedSection section_of(const std::string& file, const char* name, const char* dummy,
                            std::optional<DeepSpeedSection> (*read)(const std::string&)) {
  auto section = file.empty() ? std::nullopt : read(file);
  check_config(section.has_value(),
               "{}: prepared without {} in a DeepSpeed file; name one that has it by deepspeed_plugin.hf_ds_config",
               dummy, name);
  return *section;
}

}  // namespace

torch::optim::Optimizer& DeepSpeedObjects::optimizer_for(const DummyOptim& dummy, const std::string& file) {
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
  std::map<std::string, double> fills{
      {"warmup_min_lr", 0},
      {"warmup_max_lr", dummy.dummy() != nullptr ? dummy.dummy()->lr : optimizer.defaults().get_lr()},
      {"warmup_num_steps", options.warmup_num_steps}};
  if (options.total_num_steps)
    fills["total_num_steps"] = static_cast<double>(divide_up(*options.total_num_steps, num_batches_per_step));
  return *schedulers_.emplace_back(make_scheduler(section, optimizer, fills, file));
}

}  // namespace accel
