// Source: accelerate/utils/dataclasses.py, DeepSpeedPlugin. Resolves the plugin, the environment and the
// DeepSpeed file to ShardingOptions. The stages map to the engine's options as in set_stage; the engine itself
// knows no stages.
#include <filesystem>
#include <sstream>

#include "reference/config/plugin_reader.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/config/plugins/deepspeed_file.hpp"
#include "reference/config/plugins/sharding.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

// The fields of a plugin, or the keys of its file. A file replaces the complete configuration: a field of the plugin
// counts only if the file sets its key to "auto".
class DeepSpeedReader : public PluginReader {
 public:
  DeepSpeedReader(const DeepSpeedPlugin& plugin, std::vector<std::string>& problems)
      : PluginReader("deepspeed_plugin", plugin, problems) {
    const auto path = text("hf_ds_config");
    if (path != "none") path_ = path;
  }

  // Reads the file, if there is one. Throws ConfigError.
  void read_file() {
    if (!path_.empty()) file_ = read_deepspeed_file(path_);
    for (const auto& [name, field] : fields()) {
      // A key that the file omits takes DeepSpeed's default, not the plugin's value, hence the removal.
      if (field.deepspeed_key != nullptr && has_file() && !file_->values.contains(field.deepspeed_key)) {
        remove(name);
      } else if (field.deepspeed_key != nullptr && in_file(field.deepspeed_key)) {
        give(name, *in_file(field.deepspeed_key));
      } else if (field.fallback != nullptr && !has(name)) {
        give(name, {"deepspeed_plugin: " + name, field.fallback});
      }
    }
  }
  // Returns the value of a key in the file, unless it is "auto" or absent.
  [[nodiscard]] std::optional<GivenValue> in_file(const std::string& key) const {
    if (!file_ || !file_->values.contains(key) || file_->values.at(key) == "auto") return std::nullopt;
    return GivenValue{path_ + ": " + key, file_->values.at(key)};
  }
  [[nodiscard]] bool has_file() const { return file_.has_value(); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  std::optional<DeepSpeedFile> file_;
};

// `accelerate launch` passes the names of the fields in its config file, because a DeepSpeed file would silently hide
// them. mixed_precision is exempt: it must agree with the file. Source: DeepSpeedPlugin._deepspeed_config_checks.
void check_launcher_fields(DeepSpeedReader& fields) {
  std::stringstream listed(environment("ACCELERATE_CONFIG_DS_FIELDS").value_or(""));
  for (std::string name; std::getline(listed, name, ',');) {
    const auto field = fields.fields().find(name);
    if (field != fields.fields().end() && field->second.deepspeed_key != nullptr)
      fields.note(
          "ACCELERATE_CONFIG_DS_FIELDS: '{}' would be ignored, because a DeepSpeed file is used; set it in that file",
          name);
  }
}

int stage_of(DeepSpeedReader& fields) {
  if (!fields.has("zero_stage"))
    fields.note("{}: zero_optimization.stage: missing; set it to 0, 1, 2, 3 or \"auto\"", fields.path());
  // If the stage itself is wrong, continue with 3, which accepts all other settings, so that no further error follows.
  return fields.value<int>("zero_stage").value_or(3);
}

// nullopt stands for "auto": the Accelerator's own option then decides. A file without the key means 1,
// DeepSpeed's default.
std::optional<int> accumulation_of(DeepSpeedReader& fields) {
  if (!fields.has("gradient_accumulation_steps")) return 1;
  if (fields.text("gradient_accumulation_steps") == "auto") return std::nullopt;
  return fields.value<int>("gradient_accumulation_steps");
}

// Source of 1.0: accelerate/accelerator.py, _prepare_deepspeed, config_kwargs. DeepSpeed treats 0 as no clipping.
std::optional<double> clipping_of(DeepSpeedReader& fields) {
  if (fields.text("gradient_clipping") == "auto") return 1.0;
  const auto norm = fields.value<double>("gradient_clipping");
  return norm && *norm > 0 ? norm : std::nullopt;
}

// "nvme" means a folder here, on any file system.
OffloadDevice device_of(const std::string& field, DeepSpeedReader& fields) {
  const auto name = fields.value<std::string>(field).value_or("none");
  if (name == "none") return OffloadDevice::kNone;
  return name == "cpu" ? OffloadDevice::kCpu : OffloadDevice::kFiles;
}

// Where the optimizer state ("optimizer") or the parameters ("param") are stored between steps.
struct Offload {
  OffloadDevice device = OffloadDevice::kNone;
  std::string folder;  // only for kFiles
};

// Parameters can be offloaded only if they are sharded (stage 3), the optimizer state from stage 1 on, because
// the engine offloads shards.
Offload offload_of(const std::string& what, int stage, DeepSpeedReader& fields) {
  const auto device = "offload_" + what + "_device", folder = "offload_" + what + "_nvme_path";
  Offload offload{.device = device_of(device, fields), .folder = ""};
  const int lowest_stage = what == "param" ? 3 : 1;
  if (offload.device != OffloadDevice::kNone && stage < lowest_stage) {
    fields.problem(device, fmt::format("'{}' requires zero_stage {}, but zero_stage is {}", fields.text(device),
                                       lowest_stage == 3 ? "3" : "1, 2 or 3", stage));
  }
  if (offload.device != OffloadDevice::kFiles) return offload;
  const auto path = fields.text(folder);
  if (path == "none" || path.empty()) {
    fields.note("deepspeed_plugin: {}: missing; {}: nvme requires a folder", folder, device);
    return offload;
  }
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_directory(path, ignored))
    fields.problem(folder, fmt::format("expected a folder, got '{}'", path));
  offload.folder = path;
  return offload;
}

// Optimizer state and parameters may be stored on different devices; the engine combines both settings.
void set_offload(int stage, DeepSpeedReader& fields, ShardingOptions& options) {
  auto optimizer = offload_of("optimizer", stage, fields);
  auto parameters = offload_of("param", stage, fields);
  options.offload_optimizer = optimizer.device;
  options.offload_optimizer_path = std::move(optimizer.folder);
  options.offload_parameters = parameters.device;
  options.offload_parameters_path = std::move(parameters.folder);
}

// nullopt if the file omits the key or sets it to "auto".
std::optional<int> batch_size_of(const std::string& key, DeepSpeedReader& fields) {
  const auto given = fields.in_file(key);
  if (!given) return std::nullopt;
  fields.give(key, *given);
  return fields.optional<int>(key, at_least_one);
}

BatchSizes batch_sizes_of(DeepSpeedReader& fields) {
  return {.train = batch_size_of("train_batch_size", fields),
          .micro = batch_size_of("train_micro_batch_size_per_gpu", fields),
          .derives_steps = !fields.has("gradient_accumulation_steps")};
}

// Such a checkpoint is converted from DeepSpeed's own files.
void check_checkpoint(DeepSpeedReader& fields) {
  const std::string key = "checkpoint.load_universal";
  const auto given = fields.in_file(key);
  if (!given) return;
  fields.give(key, *given);
  if (fields.optional<bool>(key, FieldRule{.expected = "true or false"}).value_or(false))
    fields.problem(key,
                   "true is unsupported; expected false: load_state reads checkpoints of accel and Accelerate, on any "
                   "number of ranks");
}

// Both settings select the dtype of the model, so they must agree. Source: accelerate/utils/dataclasses.py,
// DeepSpeedPlugin.set_mixed_precision.
void check_precision(const std::string& name, const std::string& mixed_precision, DeepSpeedReader& fields) {
  const auto key = name + ".enabled";
  const auto given = fields.in_file(key);
  if (!given) return;
  fields.give(key, *given);
  const auto enabled = fields.optional<bool>(key, FieldRule{.expected = "true, false or \"auto\""});
  if (enabled && *enabled != (mixed_precision == name)) {
    fields.problem(
        key, fmt::format("{} contradicts mixed_precision: '{}'; set mixed_precision to '{}', or this key to \"auto\"",
                         given->text, mixed_precision, *enabled ? name : "no"));
  }
}

// DeepSpeed casts the complete module, including buffers, and reduces gradients in the same dtype.
void set_dtypes(const std::string& mixed_precision, ShardingOptions& options) {
  if (mixed_precision == "fp16") options.param_dtype = FloatType::kFloat16;
  if (mixed_precision == "bf16") options.param_dtype = FloatType::kBFloat16;
  options.reduce_dtype = options.buffer_dtype = options.param_dtype;
}

// ZeRO stage 1 shards the optimizer state, stage 2 also gradients, stage 3 also parameters. From stage 2 on,
// DeepSpeed reduces gradients in every backward pass, also during accumulation. It casts instead of using
// autocast.
void set_stage(int stage, ShardingOptions& options) {
  options.parameters = options.reshard_after_forward = stage == 3;
  options.gradients = options.reduces_always = stage >= 2;
  options.autocasts = false;
  if (stage == 3) {
    options.prefetch = Prefetch::kBackwardPre;
    options.forward_prefetch = true;
  }
  // Source: DeepSpeedEngine._broadcast_model, in every stage.
  options.sync_module_states = true;
}

// A file may write a number of elements as 1e5.
std::int64_t elements_of(const std::string& field, std::int64_t fallback, DeepSpeedReader& fields) {
  constexpr double kMost = 9e18;
  const auto number = fields.value<double>(field);
  return number ? static_cast<std::int64_t>(std::min(*number, kMost)) : fallback;
}

// Source: deepspeed/runtime/zero/config.py, DeepSpeedZeroConfig. Stages below 3 gather no parameters in a step.
void set_units(int stage, const DeepSpeedPlugin& plugin, DeepSpeedReader& fields, ShardingOptions& options) {
  const auto threshold = elements_of("stage3_param_persistence_threshold", 100'000, fields);
  const auto prefetched = elements_of("stage3_prefetch_bucket_size", 50'000'000, fields);
  const auto live = elements_of("stage3_max_live_parameters", 1'000'000'000, fields);
  if (stage < 3) {
    if (!plugin.wrap_modules.empty())
      fields.note("deepspeed_plugin: wrap_modules: requires zero_stage 3, but zero_stage is {}", stage);
    return;
  }
  options.wrap = {.kind = WrapPolicy::Kind::kElements, .min_num_params = threshold, .modules = plugin.wrap_modules};
  options.wrap.leaves = split_at_commas(fields.text("transformer_moe_cls_names"));
  fields.check_expressions("wrap_modules", plugin.wrap_modules);
  options.max_prefetched_numel = prefetched;
  options.max_live_numel = live;
}

// Source of the first warning: accelerate/utils/dataclasses.py, DeepSpeedPlugin.__post_init__.
void warn_of_init(int stage, DeepSpeedReader& fields, std::vector<std::string>& warnings) {
  if (!fields.value<bool>("zero3_init_flag").value_or(false)) return;
  warnings.emplace_back(stage < 3
                            ? "zero3_init_flag: applies to ZeRO stage 3 only; it is ignored"
                            : "zero3_init_flag: it is ignored: a model is created whole before prepare shards it");
}

bool saves_16bit_model(DeepSpeedReader& fields) { return fields.value<bool>("zero3_save_16bit_model").value_or(false); }

ResolvedPlugin resolve(const DeepSpeedPlugin& plugin, DeepSpeedReader& fields, const std::string& mixed_precision) {
  fields.read_file();
  if (fields.has_file()) check_launcher_fields(fields);
  const auto stage = stage_of(fields);
  ResolvedPlugin resolved{.gradient_accumulation_steps = accumulation_of(fields),
                          .gradient_clipping = clipping_of(fields),
                          .steps_in_backward = true};
  ShardingOptions options;
  set_stage(stage, options);
  set_dtypes(mixed_precision, options);
  set_offload(stage, fields, options);
  set_units(stage, plugin, fields, options);
  check_precision("fp16", mixed_precision, fields);
  check_precision("bf16", mixed_precision, fields);
  check_checkpoint(fields);
  resolved.batch_sizes = batch_sizes_of(fields);
  warn_of_init(stage, fields, resolved.warnings);
  resolved.saves_16bit_model = saves_16bit_model(fields) && stage == 3;
  if (stage > 0) resolved.sharding = options;
  return resolved;
}

}  // namespace

// Source: deepspeed/runtime/config.py, _set_batch_related_parameters and _batch_assertion.
std::string complete(BatchSizes& sizes, int& steps, int num_data_parallel_ranks) {
  const std::int64_t ranks = num_data_parallel_ranks;
  if (!sizes.train) return "";  // without it, any micro-batch and number of steps fit
  const auto times_ranks = [&](const char* name, std::int64_t value) {
    return fmt::format("{} {} x {} data-parallel ranks = {}", name, value, ranks, value * ranks);
  };
  const auto not_a_multiple = [&](const std::string& product) {
    return fmt::format("train_batch_size: expected a multiple of {}, got {}; change one of them", product,
                       *sizes.train);
  };
  if (sizes.micro && sizes.derives_steps) {
    const auto per_step = *sizes.micro * ranks;
    if (*sizes.train % per_step != 0)
      return not_a_multiple(times_ranks("train_micro_batch_size_per_gpu", *sizes.micro));
    steps = static_cast<int>(*sizes.train / per_step);
    return "";
  }
  const auto per_sample = steps * ranks;
  if (!sizes.micro) {
    if (*sizes.train % per_sample != 0) return not_a_multiple(times_ranks("gradient_accumulation_steps", steps));
    sizes.micro = static_cast<int>(*sizes.train / per_sample);
    return "";
  }
  if (*sizes.train == *sizes.micro * per_sample) return "";
  return fmt::format(
      "train_batch_size: expected {}, which is train_micro_batch_size_per_gpu {} x gradient_accumulation_steps {} x {} "
      "data-parallel ranks, got {}; change one of them, or omit it, so that it follows from the others",
      *sizes.micro * per_sample, *sizes.micro, steps, ranks, *sizes.train);
}

// Problems are collected instead of thrown, so that the Accelerator reports those of all options at once. A
// result is returned only if this plugin added none.
ResolvedPlugin resolve(const DeepSpeedPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems) {
  const auto problems_before = problems.size();
  DeepSpeedReader fields(plugin, problems);
  ResolvedPlugin resolved;
  try {
    resolved = resolve(plugin, fields, cast_precision(mixed_precision));
  } catch (const ConfigError& error) {
    fields.note("deepspeed_plugin: hf_ds_config: {}", error.what());
  }
  return problems.size() == problems_before ? resolved : ResolvedPlugin{};
}

}  // namespace accel
