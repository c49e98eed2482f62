// Parser of DeepSpeed files. A key either has a meaning here, is an error, or is collected in
// ignored_keys, so that a run can report once which settings it ignores. Silently ignoring a setting
// would be worse than an error.
#include "reference/config/plugins/deepspeed_file.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string_view>
#include <utility>

#include "reference/config/nearest_name.hpp"
#include "reference/config/plugins/accelerator_fields.hpp"
#include "reference/config/yaml_reader.hpp"
#include "reference/core/errors.hpp"
#include "reference/core/input/json_parser.hpp"
#include "reference/core/input/listed.hpp"

namespace accel {
namespace {

using Json = nlohmann::ordered_json;
using Problems = std::vector<std::string>;

// Keys with a meaning: those of the plugin's fields, those that must agree with other settings, and one that must not
// be set. A read-only table.
const std::set<std::string>& keys_with_meaning() {
  static const auto kKeys = [] {
    std::set<std::string> keys{"fp16.enabled", "bf16.enabled", "train_batch_size", "train_micro_batch_size_per_gpu",
                               "checkpoint.load_universal"};
    const DeepSpeedPlugin plugin;
    for_each_field(plugin, [&](const Field& field, const auto&) {
      if (field.deepspeed_key != nullptr) keys.insert(field.deepspeed_key);
    });
    return keys;
  }();
  return kKeys;
}

// The other keys of DeepSpeed, which have no effect here: for each section with a meaning, and the top, their names.
// Every further key is a mistake. Keys of sections that have no effect at all are not checked. Source:
// deepspeed/runtime/config.py, constants.py, precision_config.py, zero/config.py and zero/offload_config.py.
constexpr std::pair<std::string_view, std::string_view> kKeysWithoutEffect[] = {
    {"",
     "activation_checkpointing aio amp autotuning bfloat16 comet comms_logger communication_data_type compile "
     "compression_training csv_monitor curriculum_learning data_efficiency data_types dataloader_drop_last "
     "disable_allgather dump_state eigenvalue elasticity flops_profiler gradient_predivide_factor graph_harvesting "
     "hybrid_engine memory_breakdown monitor_config nebula pipeline prescale_gradients progressive_layer_drop "
     "quantize_training seq_parallel_comm_data_type seq_parallel_communication_data_type sequence_parallel_size "
     "sparse_attention sparse_gradients steps_per_print tensor_parallel tensorboard torch_autocast "
     "use_data_before_expert_parallelism vocabulary_size wall_clock_breakdown wandb weight_quantization "
     "zero_allow_untested_optimizer zero_force_ds_cpu_optimizer"},
    {"bf16.", "bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow immediate_grad_update"},
    {"checkpoint.", "checkpoint_serialization parallel_write tag_validation use_node_local_storage writer"},
    {"fp16.",
     "auto_cast consecutive_hysteresis fp16_master_weights_and_gradients fp16_master_weights_and_grads fused_mode "
     "hysteresis initial_scale_power loss_scale loss_scale_window min_loss_scale"},
    {"zero_optimization.",
     "allgather_bucket_size allgather_partitions contiguous_gradients cpu_offload cpu_offload_param "
     "cpu_offload_use_pin_memory elastic_checkpoint enable_sanity_checks gather_16bit_weights_on_model_save "
     "grad_hooks ignore_unused_parameters leaf_module legacy_stage1 load_from_fp32_weights "
     "log_trace_cache_warnings max_live_parameters max_reuse_distance memory_efficient_linear "
     "mics_hierarchical_params_gather mics_shard_size model_persistence_threshold module_granularity_threshold "
     "overlap_comm override_module_apply param_persistence_threshold pipeline_loading_checkpoint "
     "prefetch_bucket_size reduce_bucket_size reduce_scatter round_robin_gradients "
     "save_muon_momentum_buffer_in_memory stage3_allgather_sequential stage3_gather_fp16_weights_on_model_save "
     "stage3_max_reuse_distance stage3_model_persistence_threshold stage3_module_granularity_threshold "
     "stage3_partition_stream_chunk_size stage3_use_all_reduce_for_fetch_params sub_group_size "
     "use_all_reduce_for_fetch_params use_multi_rank_bucket_allreduce zenflow zero_hpz_partition_size "
     "zero_quantized_gradients zero_quantized_nontrainable_weights zero_quantized_weights zeropp_loco_param"},
    {"zero_optimization.offload_optimizer.",
     "buffer_count cpuadam_cores_perc fast_init pin_memory pipeline pipeline_read pipeline_write ratio "
     "super_offload"},
    {"zero_optimization.offload_param.", "buffer_count buffer_size max_in_cpu pin_memory"},
};

// "zero_optimization." of "zero_optimization.stage"; "" of "fp16".
std::string prefix_of(const std::string& key) { return key.substr(0, key.rfind('.') + 1); }

std::vector<std::string> names_without_effect(const std::string& section) {
  const auto found = std::ranges::find(kKeysWithoutEffect, section, [](const auto& entry) { return entry.first; });
  if (found == std::end(kKeysWithoutEffect)) return {};
  std::istringstream words{std::string(found->second)};
  return {std::istream_iterator<std::string>(words), {}};
}

bool is_without_effect(const std::string& key) {
  const auto section = prefix_of(key);
  const auto names = names_without_effect(section);
  return std::ranges::find(names, key.substr(section.size())) != names.end();
}

// "; did you mean ...?" with a key of the same section.
std::string hint_of(const std::string& key) {
  std::vector<std::string> names;
  const auto section = prefix_of(key);
  const auto add = [&](const std::string& known) {
    if (!known.starts_with(section)) return;
    const auto rest = known.substr(section.size());
    names.push_back(rest.substr(0, rest.find('.')));
  };
  for (const auto& known : keys_with_meaning()) add(known);
  for (const auto& name : names_without_effect(section)) names.push_back(name);
  if (section.empty()) names.insert(names.end(), {"optimizer", "scheduler"});
  const auto hint = nearest_name_hint(key.substr(section.size()), names);
  return hint.empty() ? "; correct or remove it" : hint;
}

// Source: deepspeed/runtime/lr_schedules.py, the parameters of the constructors.
const std::map<std::string, std::set<std::string>> kSchedules = {
    {"WarmupLR", {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration"}},
    {"WarmupDecayLR",
     {"warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "warmup_type", "last_batch_iteration", "total_num_steps"}},
    {"WarmupCosineLR",
     {"warmup_min_ratio", "warmup_num_steps", "cos_min_ratio", "warmup_type", "last_batch_iteration",
      "total_num_steps"}}};

// Keys are stored with their full path, so the keys of a section follow its name in the ordered set.
bool is_section(const std::string& key) {
  const auto& keys = keys_with_meaning();
  const auto next = keys.lower_bound(key + ".");
  return next != keys.end() && next->starts_with(key + ".");
}

// nlohmann::json silently keeps the last of duplicate keys. ordered_json keeps the order of the file for ignored_keys.
Json parse(const std::string& text, const std::string& path, Problems& problems) {
  auto root = parse_json<Json, ConfigError>(
      text,
      {.path = path, .expected = "a DeepSpeed file", .values_max = 300'000, .repeated = [&](const std::string& key) {
         problems.push_back(key + ": duplicate key; keep only one");
       }});
  if (root.is_object()) return root;
  problems.push_back(fmt::format("expected a JSON object, got JSON of type {}", root.type_name()));
  return Json::object();
}

void read_key(const std::string& key, const Json& value, DeepSpeedFile& file, Problems& problems);

void read_keys(const std::string& prefix, const Json& object, DeepSpeedFile& file, Problems& problems) {
  for (const auto& [key, value] : object.items()) {
    if (!value.is_null()) read_key(prefix + key, value, file, problems);
  }
}

bool is_list_of_numbers(const Json& value) {
  return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& item) { return item.is_number(); });
}

// "auto" is kept apart from values: DummyOptim and DummyScheduler fill it with the values that the program
// passes. Flags become 0 or 1.
void read_parameter(const std::string& path, const std::string& name, const Json& value, DeepSpeedSection& section,
                    Problems& problems) {
  if (value == "auto") {
    section.automatic.insert(name);
  } else if (value.is_number()) {
    section.numbers[name] = value.get<double>();
  } else if (value.is_boolean()) {
    section.numbers[name] = value.get<bool>() ? 1 : 0;
  } else if (value.is_string()) {
    section.texts[name] = value.get<std::string>();
  } else if (is_list_of_numbers(value)) {
    section.lists[name] = value.get<std::vector<double>>();
  } else if (!value.is_null()) {
    problems.push_back(
        fmt::format("{}.{}: expected a number, a string or a list of numbers, got {}", path, name, value.dump()));
  }
}

// Only the form is checked here. The names of an optimizer's parameters are checked when the optimizer is
// created.
DeepSpeedSection read_section(const std::string& path, const Json& json, Problems& problems) {
  DeepSpeedSection section;
  if (!json.is_object() || !json.contains("type") || !json["type"].is_string()) {
    problems.push_back(fmt::format(R"({}: expected {{"type": "...", "params": {{...}}}}, got {})", path, json.dump()));
    return section;
  }
  section.type = json["type"].get<std::string>();
  const auto parameters = json.value("params", Json::object());
  if (!parameters.is_object()) {
    problems.push_back(fmt::format("{}.params: expected an object, got {}", path, parameters.dump()));
    return section;
  }
  for (const auto& [name, value] : parameters.items()) read_parameter(path + ".params", name, value, section, problems);
  return section;
}

// All parameters of the schedules are numbers, except warmup_type.
bool fits(const std::string& name, const DeepSpeedSection& section) {
  if (section.automatic.contains(name)) return true;
  if (name != "warmup_type") return section.numbers.contains(name);
  const auto type = section.texts.find(name);
  return type != section.texts.end() && (type->second == "log" || type->second == "linear");
}

// Schedules are checked here because the set of parameters is closed. Optimizers are checked where they are
// created, by the optimizer itself.
void check_schedule(const DeepSpeedSection& section, Problems& problems) {
  const auto schedule = kSchedules.find(section.type);
  if (schedule == kSchedules.end()) {
    problems.push_back(
        fmt::format("scheduler.type: expected WarmupLR, WarmupDecayLR or WarmupCosineLR, got '{}'", section.type));
    return;
  }
  for (const auto& name : parameters_of(section)) {
    if (!schedule->second.contains(name)) {
      problems.push_back(fmt::format("scheduler.params.{}: {} has no such parameter; expected one of {}", name,
                                     section.type, fmt::join(schedule->second, ", ")));
    } else if (!fits(name, section)) {
      problems.push_back(fmt::format("scheduler.params.{}: expected {} or \"auto\", got {}", name,
                                     name == "warmup_type" ? "log, linear" : "a number",
                                     parameter_text(section, name)));
    }
  }
}

// The order matters: "optimizer" and "scheduler" are whole objects, and sections with meaning are descended into.
void read_key(const std::string& key, const Json& value, DeepSpeedFile& file, Problems& problems) {
  if (key == "optimizer") {
    file.optimizer = read_section(key, value, problems);
  } else if (key == "scheduler") {
    file.scheduler = read_section(key, value, problems);
    if (!file.scheduler->type.empty()) check_schedule(*file.scheduler, problems);
  } else if (is_section(key) && value.is_object()) {
    read_keys(key + ".", value, file, problems);
  } else if (is_section(key)) {
    problems.push_back(fmt::format("{}: expected an object, got {}", key, value.dump()));
  } else if (keys_with_meaning().contains(key) && value.is_structured()) {
    problems.push_back(fmt::format("{}: expected a single value, got {}", key, value.dump()));
  } else if (keys_with_meaning().contains(key)) {
    file.values[key] = value.is_string() ? value.get<std::string>() : value.dump();
  } else if (is_without_effect(key)) {
    file.ignored_keys.push_back(key);
  } else {
    problems.push_back(fmt::format("{}: unknown key{}", key, hint_of(key)));
  }
}

}  // namespace

std::set<std::string> parameters_of(const DeepSpeedSection& section) {
  auto names = section.automatic;
  for (const auto& [name, value] : section.numbers) names.insert(name);
  for (const auto& [name, value] : section.lists) names.insert(name);
  for (const auto& [name, value] : section.texts) names.insert(name);
  return names;
}

std::string parameter_text(const DeepSpeedSection& section, const std::string& name) {
  if (const auto number = section.numbers.find(name); number != section.numbers.end())
    return fmt::format("{}", number->second);
  if (const auto list = section.lists.find(name); list != section.lists.end())
    return fmt::format("[{}]", fmt::join(list->second, ", "));
  if (const auto text = section.texts.find(name); text != section.texts.end()) return fmt::format("'{}'", text->second);
  return section.automatic.contains(name) ? "\"auto\"" : "nothing";
}

// The file is read by each caller anew (plugin, optimizer, scheduler): it is small, and a shared copy would need
// an owner.
DeepSpeedFile read_deepspeed_file(const std::string& path) {
  const auto text = read_text(path);
  Problems problems;
  DeepSpeedFile file;
  read_keys("", parse(text, path, problems), file, problems);
  check_config(problems.empty(), "{}: {}", path, listed(problems, "; "));
  return file;
}

std::vector<std::string> ignored_keys(const std::string& path) { return read_deepspeed_file(path).ignored_keys; }

std::optional<DeepSpeedSection> optimizer_section(const std::string& path) {
  return read_deepspeed_file(path).optimizer;
}

std::optional<DeepSpeedSection> scheduler_section(const std::string& path) {
  return read_deepspeed_file(path).scheduler;
}

}  // namespace accel
