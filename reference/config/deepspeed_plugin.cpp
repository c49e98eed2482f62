#include <filesystem>
#include <limits>
#include <set>
#include <sstream>

#include "reference/config/deepspeed_file.hpp"
#include "reference/config/plugin_fields.hpp"
#include "reference/config/sharding.hpp"
#include "reference/config/sharding_names.hpp"
#include "reference/core/errors.hpp"

namespace accel {
namespace {

// The fields of a plugin, or the keys of its file: a file is the whole configuration, which "auto" alone leaves to the
// plugin.
class DeepSpeedValues {
 public:
  DeepSpeedValues(const std::string& path, PluginFields& fields) : path_(path), fields_(fields) {
    if (!path.empty()) file_ = read_deepspeed_file(path);
  }

  template <typename T>
  [[nodiscard]] std::optional<GivenValue> find(const char* field, const std::optional<T>& value, const char* variable,
                                               const char* key, const char* fallback) const {
    if (file_) {
      const auto found = file_->values.find(key);
      if (found == file_->values.end()) return std::nullopt;
      if (found->second != "auto") return GivenValue{path_ + ": " + key, found->second};
    }
    return fields_.find(field, value, variable).value_or(GivenValue{fields_.name_of(field), fallback});
  }
  /// What the file alone says, unless it is "auto".
  [[nodiscard]] std::optional<GivenValue> in_file(const char* key) const {
    if (!file_ || !file_->values.contains(key) || file_->values.at(key) == "auto") return std::nullopt;
    return GivenValue{path_ + ": " + key, file_->values.at(key)};
  }
  [[nodiscard]] bool has_file() const { return file_.has_value(); }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
  PluginFields& fields_;
  std::optional<DeepSpeedFile> file_;
};

std::string path_of(const DeepSpeedPlugin& plugin, const PluginFields& fields) {
  const auto given = fields.find("hf_ds_config", plugin.hf_ds_config, "ACCELERATE_DEEPSPEED_CONFIG_FILE");
  return given && given->text != "none" ? given->text : "";
}

// `accelerate launch` lists the fields of its config file, which a DeepSpeed file would hide. Not mixed_precision,
// which that has to agree with. Source: DeepSpeedPlugin._deepspeed_config_checks.
void check_launcher_fields(PluginFields& fields) {
  const std::set<std::string> hidden = {
      "gradient_accumulation_steps", "gradient_clipping",     "zero_stage",
      "offload_optimizer_device",    "offload_param_device",  "offload_param_nvme_path",
      "offload_optimizer_nvme_path", "zero3_save_16bit_model"};
  std::stringstream listed(environment("ACCELERATE_CONFIG_DS_FIELDS").value_or(""));
  for (std::string field; std::getline(listed, field, ',');) {
    if (hidden.contains(field))
      fields.problem("ACCELERATE_CONFIG_DS_FIELDS: '{}' would be ignored beside a DeepSpeed file; give it there",
                     field);
  }
}

std::int64_t stage_of(const DeepSpeedPlugin& plugin, const DeepSpeedValues& values, PluginFields& fields) {
  const auto given =
      values.find("zero_stage", plugin.zero_stage, "ACCELERATE_DEEPSPEED_ZERO_STAGE", "zero_optimization.stage", "2");
  if (!given) fields.problem("{}: zero_optimization.stage: missing; expected 0, 1, 2, 3 or \"auto\"", values.path());
  // A stage that everything else fits, where it is wrong itself.
  return fields.integer(given, 0, 3).value_or(3);
}

std::optional<int> accumulation_of(const DeepSpeedPlugin& plugin, const DeepSpeedValues& values, PluginFields& fields) {
  const auto given = values.find("gradient_accumulation_steps", plugin.gradient_accumulation_steps,
                                 "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "gradient_accumulation_steps", "auto");
  if (!given) return 1;
  if (given->text == "auto") return std::nullopt;
  const auto steps = fields.integer(given, 1, std::numeric_limits<int>::max(), " or \"auto\"");
  return steps ? std::optional(static_cast<int>(*steps)) : std::nullopt;
}

// Source of 1.0: accelerator.py, _prepare_deepspeed, config_kwargs. DeepSpeed does not clip to 0.
std::optional<double> clipping_of(const DeepSpeedPlugin& plugin, const DeepSpeedValues& values, PluginFields& fields) {
  const auto given = values.find("gradient_clipping", plugin.gradient_clipping, "ACCELERATE_GRADIENT_CLIPPING",
                                 "gradient_clipping", "auto");
  if (given && given->text == "auto") return 1.0;
  const auto norm = fields.number_above_or_zero(given);
  return norm && *norm > 0 ? norm : std::nullopt;
}

OffloadDevice device_of(const std::optional<GivenValue>& given, PluginFields& fields) {
  const auto name = fields.choice(given, kOffloadDevices).value_or("none");
  if (name == "none") return OffloadDevice::kNone;
  return name == "cpu" ? OffloadDevice::kCpu : OffloadDevice::kFiles;
}

// Of the optimizer's state ("optimizer") or of parameters ("param"): where they lie between steps.
struct Offload {
  OffloadDevice device = OffloadDevice::kNone;
  std::string folder;  // of kFiles
};

Offload offload_of(const std::string& what, const std::optional<std::string>& device_field,
                   const std::optional<std::string>& folder_field, std::int64_t stage, const DeepSpeedValues& values,
                   PluginFields& fields) {
  const std::string variable =
      what == "param" ? "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_" : "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_";
  const auto find = [&](const char* detail, const char* of_variable, const std::optional<std::string>& value) {
    return values.find(fmt::format("offload_{}_{}", what, detail).c_str(), value, (variable + of_variable).c_str(),
                       fmt::format("zero_optimization.offload_{}.{}", what, detail).c_str(), "none");
  };
  const auto device = find("device", "DEVICE", device_field), folder = find("nvme_path", "NVME_PATH", folder_field);
  Offload offload{.device = device_of(device, fields), .folder = ""};
  const int lowest_stage = what == "param" ? 3 : 1;
  if (offload.device != OffloadDevice::kNone && stage < lowest_stage) {
    fields.problem("{}: '{}' needs zero_stage {}, and it is {}", device->name, device->text,
                   lowest_stage == 3 ? "3" : "1, 2 or 3", stage);
  }
  if (offload.device != OffloadDevice::kFiles) return offload;
  if (!folder || folder->text == "none" || folder->text.empty()) {
    fields.problem("deepspeed_plugin: offload_{}_nvme_path: missing; offload_{}_device: nvme needs a folder", what,
                   what);
    return offload;
  }
  std::error_code ignored;
  if (std::filesystem::exists(folder->text, ignored) && !std::filesystem::is_directory(folder->text, ignored))
    fields.unexpected(*folder, "a folder");
  offload.folder = folder->text;
  return offload;
}

void set_offload(const DeepSpeedPlugin& plugin, const DeepSpeedValues& values, std::int64_t stage, PluginFields& fields,
                 ShardingOptions& options) {
  auto optimizer = offload_of("optimizer", plugin.offload_optimizer_device, plugin.offload_optimizer_nvme_path, stage,
                              values, fields);
  auto parameters =
      offload_of("param", plugin.offload_param_device, plugin.offload_param_nvme_path, stage, values, fields);
  options.offload_optimizer = optimizer.device;
  options.offload_optimizer_path = std::move(optimizer.folder);
  options.offload_parameters = parameters.device;
  options.offload_parameters_path = std::move(parameters.folder);
}

void check_precision(const char* name, const DeepSpeedValues& values, const std::string& mixed_precision,
                     PluginFields& fields) {
  const auto given = values.in_file(fmt::format("{}.enabled", name).c_str());
  const auto enabled = fields.flag(given, "true, false or \"auto\"");
  if (enabled && *enabled != (mixed_precision == name)) {
    fields.problem("{}: {} does not agree with mixed_precision: '{}'; set mixed_precision to '{}', or this to \"auto\"",
                   given->name, given->text, mixed_precision, *enabled ? name : "no");
  }
}

// DeepSpeed casts the whole module, buffers too, and sums gradients in that dtype.
void set_dtypes(const std::string& mixed_precision, ShardingOptions& options) {
  if (mixed_precision == "fp16") options.param_dtype = FloatType::kFloat16;
  if (mixed_precision == "bf16") options.param_dtype = FloatType::kBFloat16;
  options.reduce_dtype = options.buffer_dtype = options.param_dtype;
}

void set_stage(std::int64_t stage, ShardingOptions& options) {
  options.parameters = options.reshard_after_forward = options.forward_prefetch = stage == 3;
  options.gradients = options.reduces_always = stage >= 2;
  options.autocasts = false;
  options.prefetch = stage == 3 ? Prefetch::kBackwardPre : Prefetch::kNone;
  // DeepSpeedEngine._broadcast_model, whatever the stage.
  options.sync_module_states = true;
}

// The flag that decides nothing here is read all the same.
bool saves_16bit_model(const DeepSpeedPlugin& plugin, const DeepSpeedValues& values, PluginFields& fields) {
  fields.flag(fields.find("zero3_init_flag", plugin.zero3_init_flag, "ACCELERATE_DEEPSPEED_ZERO3_INIT"));
  return fields
      .flag(values.find("zero3_save_16bit_model", plugin.zero3_save_16bit_model,
                        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
                        "zero_optimization.stage3_gather_16bit_weights_on_model_save", "false"))
      .value_or(false);
}

ResolvedPlugin resolve(const DeepSpeedPlugin& plugin, const DeepSpeedValues& values, const std::string& mixed_precision,
                       PluginFields& fields) {
  if (values.has_file()) check_launcher_fields(fields);
  const auto stage = stage_of(plugin, values, fields);
  ResolvedPlugin resolved{.gradient_accumulation_steps = accumulation_of(plugin, values, fields),
                          .gradient_clipping = clipping_of(plugin, values, fields),
                          .steps_in_backward = true};
  ShardingOptions options;
  set_stage(stage, options);
  set_dtypes(mixed_precision, options);
  set_offload(plugin, values, stage, fields, options);
  check_precision("fp16", values, mixed_precision, fields);
  check_precision("bf16", values, mixed_precision, fields);
  resolved.saves_16bit_model = saves_16bit_model(plugin, values, fields) && stage == 3;
  if (stage > 0) resolved.sharding = options;
  return resolved;
}

}  // namespace

ResolvedPlugin resolve(const DeepSpeedPlugin& plugin, const std::string& mixed_precision,
                       std::vector<std::string>& problems) {
  const auto problems_before = problems.size();
  PluginFields fields("deepspeed_plugin", problems);
  ResolvedPlugin resolved;
  try {
    resolved =
        resolve(plugin, DeepSpeedValues(path_of(plugin, fields), fields), precision_of_casts(mixed_precision), fields);
  } catch (const ConfigError& error) {
    fields.problem("deepspeed_plugin: hf_ds_config: {}", error.what());
  }
  return problems.size() == problems_before ? resolved : ResolvedPlugin{};
}

}  // namespace accel
