// The questions of `accel config`. Texts and order are copied from Accelerate, so that answers that people know or have
// scripted keep working; the texts live with the keys in launch_keys.cpp. Source:
// accelerate/commands/config/cluster.py.
#include "sim/programs/accel/config_questions.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/config/environment.hpp"
#include "reference/config/launch/launch_keys.hpp"

namespace accel::programs {
namespace {

constexpr const char* kUnsupportedDevices =
    "This library supports local machines with CPUs and NVIDIA GPUs only; use Python's Accelerate for others.";

bool is_address(const std::string& text) { return text.find_first_of(" \t/") == std::string::npos; }
bool is_port(std::int64_t port) { return port >= 1 && port <= 65535; }
bool is_at_least_one(std::int64_t number) { return number >= 1; }

// Rejects typing errors such as "0,,1" or a trailing comma, which CUDA_VISIBLE_DEVICES would cut off silently.
bool is_list_of_numbers(const std::string& text) {
  return text == "all" || (text.find_first_not_of("0123456789,") == std::string::npos && text.front() != ',' &&
                           text.back() != ',' && text.find(",,") == std::string::npos);
}

// Asks for the value of a key, with the question and the default answer from the key's table. The functions below
// decide which keys are asked for.
class KeyQuestions {
 public:
  KeyQuestions(Prompt& prompt, const LaunchSection& section) : prompt_(prompt), section_(&section) {}
  explicit KeyQuestions(Prompt& prompt) : prompt_(prompt) {}

  [[nodiscard]] bool flag(const std::string& name) const {
    const auto& key = find(name);
    return prompt_.ask_flag(key.question, flag_of(key.answer).value());
  }
  [[nodiscard]] std::int64_t integer(const std::string& name,
                                     const std::function<bool(std::int64_t)>& check = is_at_least_one,
                                     const std::string& expected = "an integer of 1 or more") const {
    const auto& key = find(name);
    const auto answer = key.answer == nullptr ? std::nullopt : std::optional<std::int64_t>(std::stoll(key.answer));
    return prompt_.ask_integer(key.question, answer, check, expected);
  }
  [[nodiscard]] double number(const std::string& name) const {
    return prompt_.ask_number(find(name).question, std::stod(find(name).answer));
  }
  [[nodiscard]] std::string text(const std::string& name, const std::string& expected = "an answer",
                                 const std::function<bool(const std::string&)>& check = nullptr) const {
    const auto& key = find(name);
    const auto answer = key.answer == nullptr ? std::nullopt : std::optional<std::string>(key.answer);
    return prompt_.ask_text(key.question, answer, check, expected);
  }
  [[nodiscard]] std::string choice(const std::string& name) const {
    const auto& key = find(name);
    const auto answer = std::find(key.choices.begin(), key.choices.end(), std::string_view(key.answer));
    return choice(name, {key.choices.begin(), key.choices.end()},
                  static_cast<std::size_t>(std::distance(key.choices.begin(), answer)));
  }
  [[nodiscard]] std::string choice(const std::string& name, const std::vector<std::string>& choices,
                                   std::size_t answer = 0) const {
    return choices.at(prompt_.choose(find(name).question, choices, answer));
  }

 private:
  [[nodiscard]] const LaunchKey& find(const std::string& name) const {
    return section_ == nullptr ? *file_entries().at(name).key : *find_key(*section_, name);
  }

  Prompt& prompt_;
  const LaunchSection* section_ = nullptr;
};

// An answer that this library cannot serve is explained, and the question is asked again. Accelerate's choices stay in
// the menu, because the numbers of the others would change without them.
void ask_compute_environment(Prompt& prompt) {
  while (prompt.choose("In which compute environment are you running?", {"This machine", "AWS (Amazon SageMaker)"}) !=
         0)
    prompt.say(kUnsupportedDevices);
}

// One entry stands for all devices that are unsupported here; Accelerate lists them one by one.
std::string ask_type(Prompt& prompt) {
  const std::vector<std::string> names{"NO", "MULTI_CPU", "MULTI_GPU"};
  for (;;) {
    const auto chosen = prompt.choose(
        "Which type of machine are you using?",
        {"No distributed training", "multi-CPU", "multi-GPU", "TPU, XPU, HPU, NPU, MLU, SDAA, MUSA, NEURON"});
    if (chosen < names.size()) return names[chosen];
    prompt.say(kUnsupportedDevices);
  }
}

// debug is asked here, after the machines, because Accelerate asks it for distributed runs only.
void ask_machines(Prompt& prompt, LaunchConfig& config) {
  const KeyQuestions ask(prompt);
  config.num_machines = static_cast<int>(ask.integer("num_machines"));
  if (config.num_machines > 1) {
    const auto is_rank = [&](std::int64_t rank) { return rank >= 0 && rank < config.num_machines; };
    config.machine_rank =
        static_cast<int>(ask.integer("machine_rank", is_rank, fmt::format("0 to {}", config.num_machines - 1)));
    config.main_process_ip = ask.text("main_process_ip", "an address or a host's name", is_address);
    config.main_process_port = static_cast<int>(ask.integer("main_process_port", is_port, "1 to 65535"));
    config.same_network = ask.flag("same_network");
    if (!config.same_network) config.rdzv_backend = ask.text("rdzv_backend");
  }
  config.debug = ask.flag("debug");
}

// Asked on CPUs only, as in Accelerate.
void ask_mpirun(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want accel to launch mpirun?", false)) return;
  const KeyQuestions ask(prompt, launch_section("mpirun_config"));
  config.mpirun_config["mpirun_hostfile"] = expand_home(ask.text("mpirun_hostfile"));
}

// A DeepSpeed file replaces all other DeepSpeed keys, so nothing more is asked after it.
void ask_deepspeed(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want to use DeepSpeed? (its ZeRO stages and its files, by this library's own engine)",
                       false))
    return;
  config.distributed_type = "DEEPSPEED";
  auto& deepspeed = config.deepspeed_config;
  const KeyQuestions ask(prompt, launch_section("deepspeed_config"));
  if (prompt.ask_flag("Do you want to specify a json file to a DeepSpeed config?", false)) {
    deepspeed["deepspeed_config_file"] = ask.text("deepspeed_config_file", "a path");
    return;
  }
  const std::int64_t stage = std::stoll(ask.choice("zero_stage"));
  deepspeed["zero_stage"] = stage;
  for (const std::string part : {"offload_optimizer", "offload_param"}) {
    if (stage < 2) break;
    const auto device = ask.choice(part + "_device");
    deepspeed[part + "_device"] = device;
    if (device == "nvme") deepspeed[part + "_nvme_path"] = ask.text(part + "_nvme_path");
  }
  deepspeed["gradient_accumulation_steps"] = ask.integer("gradient_accumulation_steps");
  if (prompt.ask_flag("Do you want to use gradient clipping?", false))
    deepspeed["gradient_clipping"] = ask.number("gradient_clipping");
  if (stage == 3) deepspeed["zero3_save_16bit_model"] = ask.flag("zero3_save_16bit_model");
}

void ask_wrap_policy(const KeyQuestions& ask, ConfigSection& fsdp) {
  const auto policy = ask.choice("fsdp_auto_wrap_policy");
  fsdp["fsdp_auto_wrap_policy"] = policy;
  if (policy == "TRANSFORMER_BASED_WRAP")
    fsdp["fsdp_transformer_layer_cls_to_wrap"] = ask.text("fsdp_transformer_layer_cls_to_wrap", "names of classes");
  else if (policy == "SIZE_BASED_WRAP")
    fsdp["fsdp_min_num_params"] = ask.integer("fsdp_min_num_params");
}

// The two versions offer the formats of checkpoints in a different order, so that the default of each comes first.
void ask_fsdp_1(const KeyQuestions& ask, ConfigSection& fsdp) {
  fsdp["fsdp_backward_prefetch"] = ask.choice("fsdp_backward_prefetch");
  fsdp["fsdp_state_dict_type"] = ask.choice("fsdp_state_dict_type", {"FULL_STATE_DICT", "SHARDED_STATE_DICT"});
  for (const auto* key : {"fsdp_forward_prefetch", "fsdp_use_orig_params", "fsdp_cpu_ram_efficient_loading"})
    fsdp[key] = ask.flag(key);
  // Loading on rank 0 alone only works if its parameters are then sent to the others, so that is not a question.
  const bool loads_on_rank_0 = std::get<bool>(fsdp["fsdp_cpu_ram_efficient_loading"]);
  fsdp["fsdp_sync_module_states"] = loads_on_rank_0 || ask.flag("fsdp_sync_module_states");
}

void ask_fsdp_2(const KeyQuestions& ask, ConfigSection& fsdp) {
  fsdp["fsdp_state_dict_type"] = ask.choice("fsdp_state_dict_type", {"SHARDED_STATE_DICT", "FULL_STATE_DICT"});
  fsdp["fsdp_cpu_ram_efficient_loading"] = ask.flag("fsdp_cpu_ram_efficient_loading");
}

void ask_parallelism(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want to use the parallelism config?", false)) return;
  auto& mesh = config.parallelism_config;
  const KeyQuestions ask(prompt, launch_section("parallelism_config"));
  for (const auto* axis : {"dp_replicate", "dp_shard", "tp", "cp"}) {
    const auto key = fmt::format("parallelism_config_{}_size", axis);
    mesh[key] = ask.integer(key);
  }
  if (mesh.at("parallelism_config_cp_size") != ConfigValue(std::int64_t{1}))
    mesh["parallelism_config_cp_comm_strategy"] = ask.choice("parallelism_config_cp_comm_strategy");
}

void ask_fsdp(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want to use FullyShardedDataParallel?", false)) return;
  config.distributed_type = "FSDP";
  auto& fsdp = config.fsdp_config;
  const KeyQuestions ask(prompt, launch_section("fsdp_config"));
  const std::int64_t version = std::stoll(ask.choice("fsdp_version"));
  fsdp["fsdp_version"] = version;
  // Accelerate stores the strategy of version 1 as fsdp_reshard_after_forward, which its version 1 does not read. This
  // stores the key that both programs read.
  if (version == 1)
    fsdp["fsdp_sharding_strategy"] = ask.choice("fsdp_sharding_strategy");
  else
    fsdp["fsdp_reshard_after_forward"] = ask.flag("fsdp_reshard_after_forward");
  fsdp["fsdp_offload_params"] = ask.flag("fsdp_offload_params");
  ask_wrap_policy(ask, fsdp);
  if (version == 1)
    ask_fsdp_1(ask, fsdp);
  else
    ask_fsdp_2(ask, fsdp);
  fsdp["fsdp_activation_checkpointing"] = ask.flag("fsdp_activation_checkpointing");
  if (version == 2) ask_parallelism(prompt, config);
}

// The number of micro-batches is a question only of pipelines, as in Accelerate.
void ask_megatron_lm(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want to use Megatron-LM ? (its parallelism, by this library's own engine)", false))
    return;
  config.distributed_type = "MEGATRON_LM";
  auto& megatron = config.megatron_lm_config;
  const KeyQuestions ask(prompt, launch_section("megatron_lm_config"));
  const auto tensor_parallel = ask.integer("megatron_lm_tp_degree");
  megatron["megatron_lm_tp_degree"] = tensor_parallel;
  if (tensor_parallel > 1) megatron["megatron_lm_sequence_parallelism"] = ask.flag("megatron_lm_sequence_parallelism");
  const auto is_one = [](std::int64_t degree) { return degree == 1; };
  megatron["megatron_lm_pp_degree"] =
      ask.integer("megatron_lm_pp_degree", is_one, "1; pipeline parallelism is unsupported");
  for (const auto* key : {"megatron_lm_recompute_activations", "megatron_lm_use_distributed_optimizer"})
    megatron[key] = ask.flag(key);
  megatron["megatron_lm_gradient_clipping"] = ask.number("megatron_lm_gradient_clipping");
}

void ask_processes(Prompt& prompt, LaunchConfig& config) {
  // With one process per GPU, one GPU on one machine would be no distributed run, although the user has just asked for
  // one.
  const bool needs_two_processes = config.distributed_type == "MULTI_GPU" && config.num_machines == 1;
  const auto fits = [&](std::int64_t number) {
    return number >= (needs_two_processes ? 2 : 1) && number <= 1'000'000 && number % config.num_machines == 0;
  };
  const auto what = config.use_cpu ? "processes" : "GPU(s)";
  const auto expected =
      config.num_machines > 1 ? fmt::format("a multiple of {}, the number of machines", config.num_machines)
      : needs_two_processes   ? std::string("an integer of 2 or more; distributed training needs at least two GPUs")
                              : std::string("an integer of 1 or more");
  // The default must be a valid answer: at least one process per machine.
  const std::int64_t fallback = needs_two_processes ? 2 : config.num_machines;
  config.num_processes = static_cast<int>(prompt.ask_integer(
      fmt::format("How many {} should be used for distributed training, on all machines together?", what), fallback,
      fits, expected));
}

void ask_devices(const KeyQuestions& ask, LaunchConfig& config) {
  config.gpu_ids = ask.text("gpu_ids", "numbers, as in 0,1, or all", is_list_of_numbers);
  config.enable_cpu_affinity = ask.flag("enable_cpu_affinity");
}

}  // namespace

// The initial values are those that Accelerate writes without asking.
LaunchConfig ask_launch_config(Prompt& prompt) {
  LaunchConfig config{.num_processes = 1,
                      .same_network = true,
                      .downcast_bf16 = std::string("no"),
                      .tpu_env = std::vector<std::string>()};
  const KeyQuestions ask(prompt);
  ask_compute_environment(prompt);
  const auto type = ask_type(prompt);
  config.distributed_type = type;
  const bool is_distributed = type != "NO";
  if (is_distributed) ask_machines(prompt, config);
  config.use_cpu = type == "MULTI_CPU" || (type == "NO" && ask.flag("use_cpu"));
  if (type == "MULTI_CPU") ask_mpirun(prompt, config);
  ask_deepspeed(prompt, config);
  if (is_distributed && config.distributed_type != "DEEPSPEED") ask_fsdp(prompt, config);
  if (is_distributed && config.distributed_type == type) ask_megatron_lm(prompt, config);
  if (config.distributed_type != "NO") ask_processes(prompt, config);
  if (!config.use_cpu) ask_devices(ask, config);
  if (!config.deepspeed_config.contains("deepspeed_config_file"))
    config.mixed_precision = ask.choice("mixed_precision");
  // Accelerate's default enables float8 all-gathers, with which only FSDP2 converts any layer to float8; other models
  // would train without float8 silently.
  if (config.mixed_precision == "fp8")
    config.fp8_config = {
        {"fp8_backend", "AO"}, {"fp8_enable_fsdp_float8_all_gather", false}, {"fp8_pad_inner_dim", true}};
  return config;
}

}  // namespace accel::programs
