#include "sim/programs/accel/config_questions.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "reference/config/environment.hpp"
#include "reference/config/sharding_names.hpp"

namespace accel::programs {
namespace {

constexpr const char* kNotForUs =
    "This library runs on this machine's CPUs and NVIDIA GPUs, and on others like it; Python's Accelerate has the "
    "rest.";

bool is_address(const std::string& text) { return text.find_first_of(" \t/") == std::string::npos; }
bool is_port(std::int64_t port) { return port >= 1 && port <= 65535; }
bool is_at_least_one(std::int64_t number) { return number >= 1; }

bool is_list_of_numbers(const std::string& text) {
  return text == "all" || (text.find_first_not_of("0123456789,") == std::string::npos && text.front() != ',' &&
                           text.back() != ',' && text.find(",,") == std::string::npos);
}

std::string choose_name(Prompt& prompt, const std::string& question, const std::vector<std::string>& names,
                        std::size_t fallback = 0) {
  return names.at(prompt.choose(question, names, fallback));
}

void ask_compute_environment(Prompt& prompt) {
  while (prompt.choose("In which compute environment are you running?", {"This machine", "AWS (Amazon SageMaker)"}) !=
         0)
    prompt.say(kNotForUs);
}

std::string ask_type(Prompt& prompt) {
  const std::vector<std::string> names{"NO", "MULTI_CPU", "MULTI_GPU"};
  for (;;) {
    const auto chosen = prompt.choose(
        "Which type of machine are you using?",
        {"No distributed training", "multi-CPU", "multi-GPU", "TPU, XPU, HPU, NPU, MLU, SDAA, MUSA, NEURON"});
    if (chosen < names.size()) return names[chosen];
    prompt.say(kNotForUs);
  }
}

void ask_machines(Prompt& prompt, LaunchConfig& config) {
  config.num_machines = static_cast<int>(
      prompt.ask_integer("How many different machines will you use (use more than 1 for multi-node training)?", 1,
                         is_at_least_one, "an integer of 1 or more"));
  if (config.num_machines > 1) {
    const auto is_rank = [&](std::int64_t rank) { return rank >= 0 && rank < config.num_machines; };
    config.machine_rank = static_cast<int>(prompt.ask_integer("What is the rank of this machine?", 0, is_rank,
                                                              fmt::format("0 to {}", config.num_machines - 1)));
    config.main_process_ip = prompt.ask_text("What is the IP address of the machine that will host the main process?",
                                             std::nullopt, is_address, "an address or a host's name");
    config.main_process_port = static_cast<int>(prompt.ask_integer(
        "What is the port you will use to communicate with the main process?", std::nullopt, is_port, "1 to 65535"));
    config.same_network = prompt.ask_flag(
        "Are all the machines on the same local network? Answer `no` if nodes are on the cloud and/or on different "
        "network hosts",
        true);
    if (!config.same_network)
      config.rdzv_backend = prompt.ask_text("What rendezvous backend will you use? ('static', 'c10d', ...)", "static");
  }
  config.debug = prompt.ask_flag(
      "Should distributed operations be checked while running for errors? This can avoid timeout issues but will be "
      "slower.",
      false);
}

void ask_mpirun(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want accel to launch mpirun?", false)) return;
  config.mpirun_config["mpirun_hostfile"] =
      expand_home(prompt.ask_text("Please enter the path to the hostfile to use with mpirun", "~/hostfile"));
}

void ask_offload(Prompt& prompt, ConfigSection& deepspeed) {
  const auto ask = [&](const std::string& part, const std::string& what) {
    const auto device = choose_name(prompt, fmt::format("Where to offload {}?", what),
                                    {kOffloadDevices.begin(), kOffloadDevices.end()});
    deepspeed[part + "_device"] = device;
    if (device == "nvme")
      deepspeed[part + "_nvme_path"] = prompt.ask_text(fmt::format("Nvme Path to offload {}?", what), "/nvme");
  };
  ask("offload_optimizer", "optimizer states");
  ask("offload_param", "parameters");
}

void ask_deepspeed(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want to use DeepSpeed? (its ZeRO stages and its files, by this library's own engine)",
                       false))
    return;
  config.distributed_type = "DEEPSPEED";
  auto& deepspeed = config.deepspeed_config;
  if (prompt.ask_flag("Do you want to specify a json file to a DeepSpeed config?", false)) {
    deepspeed["deepspeed_config_file"] =
        prompt.ask_text("Please enter the path to the json DeepSpeed config file", std::nullopt, nullptr, "a path");
    return;
  }
  const auto stage = static_cast<std::int64_t>(
      prompt.choose("What should be your DeepSpeed's ZeRO optimization stage?", {"0", "1", "2", "3"}, 2));
  deepspeed["zero_stage"] = stage;
  if (stage >= 2) ask_offload(prompt, deepspeed);
  deepspeed["gradient_accumulation_steps"] =
      prompt.ask_integer("How many gradient accumulation steps you're passing in your script?", 1, is_at_least_one,
                         "an integer of 1 or more");
  if (prompt.ask_flag("Do you want to use gradient clipping?", false))
    deepspeed["gradient_clipping"] = prompt.ask_number("What is the gradient clipping value?", 1.0);
  if (stage == 3)
    deepspeed["zero3_save_16bit_model"] =
        prompt.ask_flag("Do you want to save 16-bit model weights when using ZeRO Stage-3?", false);
}

void ask_wrap_policy(Prompt& prompt, ConfigSection& fsdp) {
  const auto policy =
      choose_name(prompt, "What should be your auto wrap policy?", {kWrapPolicies.begin(), kWrapPolicies.end()});
  fsdp["fsdp_auto_wrap_policy"] = policy;
  if (policy == "TRANSFORMER_BASED_WRAP") {
    fsdp["fsdp_transformer_layer_cls_to_wrap"] = prompt.ask_text(
        "Specify the comma-separated list of layer class names (case-sensitive) to wrap, e.g. `Block` or "
        "`Encoder,Decoder`",
        std::nullopt, nullptr, "names of classes");
  } else if (policy == "SIZE_BASED_WRAP") {
    fsdp["fsdp_min_num_params"] =
        prompt.ask_integer("What should be your FSDP's minimum number of parameters for Default Auto Wrapping Policy?",
                           100'000'000, is_at_least_one, "an integer of 1 or more");
  }
}

void ask_fsdp_1(Prompt& prompt, ConfigSection& fsdp) {
  fsdp["fsdp_backward_prefetch"] = choose_name(prompt, "What should be your FSDP's backward prefetch policy?",
                                               {kBackwardPrefetches.begin(), kBackwardPrefetches.end()});
  fsdp["fsdp_state_dict_type"] =
      choose_name(prompt, "What should be your FSDP's state dict type?", {"FULL_STATE_DICT", "SHARDED_STATE_DICT"});
  fsdp["fsdp_forward_prefetch"] = prompt.ask_flag("Do you want to enable FSDP's forward prefetch policy?", false);
  fsdp["fsdp_use_orig_params"] = prompt.ask_flag("Do you want to enable FSDP's `use_orig_params` feature?", true);
  const bool loads_once = prompt.ask_flag("Do you want to enable CPU RAM efficient model loading?", true);
  fsdp["fsdp_cpu_ram_efficient_loading"] = loads_once;
  fsdp["fsdp_sync_module_states"] =
      loads_once ||
      prompt.ask_flag(
          "Do you want each individually wrapped FSDP unit to broadcast module parameters from rank 0 at the start?",
          true);
}

void ask_fsdp(Prompt& prompt, LaunchConfig& config) {
  if (!prompt.ask_flag("Do you want to use FullyShardedDataParallel?", false)) return;
  config.distributed_type = "FSDP";
  auto& fsdp = config.fsdp_config;
  const auto version = static_cast<std::int64_t>(prompt.choose("What should be your FSDP version?", {"1", "2"}, 1)) + 1;
  fsdp["fsdp_version"] = version;
  // Accelerate writes the strategy of version 1 as reshard_after_forward, which it does not read there.
  if (version == 1)
    fsdp["fsdp_sharding_strategy"] = choose_name(prompt, "What should be your sharding strategy?",
                                                 {kShardingStrategies.begin(), kShardingStrategies.end()});
  else
    fsdp["fsdp_reshard_after_forward"] = prompt.ask_flag("Do you want to enable resharding after forward?", true);
  fsdp["fsdp_offload_params"] = prompt.ask_flag("Do you want to offload parameters and gradients to CPU?", false);
  ask_wrap_policy(prompt, fsdp);
  if (version == 1) {
    ask_fsdp_1(prompt, fsdp);
  } else {
    fsdp["fsdp_state_dict_type"] =
        choose_name(prompt, "What should be your FSDP's state dict type?", {"SHARDED_STATE_DICT", "FULL_STATE_DICT"});
    fsdp["fsdp_cpu_ram_efficient_loading"] =
        prompt.ask_flag("Do you want to enable CPU RAM efficient model loading?", true);
  }
  fsdp["fsdp_activation_checkpointing"] =
      prompt.ask_flag("Do you want to enable FSDP activation checkpointing?", false);
}

void ask_processes(Prompt& prompt, LaunchConfig& config) {
  const bool one_is_too_few = config.distributed_type == "MULTI_GPU" && config.num_machines == 1;
  const auto fits = [&](std::int64_t number) {
    return number >= (one_is_too_few ? 2 : 1) && number <= 1'000'000 && number % config.num_machines == 0;
  };
  const auto what = config.use_cpu ? "processes" : "GPU(s)";
  const auto expected = config.num_machines > 1
                            ? fmt::format("a multiple of {}, the number of machines", config.num_machines)
                        : one_is_too_few ? std::string("an integer of 2 or more; one GPU is no distributed training")
                                         : std::string("an integer of 1 or more");
  const std::int64_t fallback = one_is_too_few ? 2 : config.num_machines;
  config.num_processes = static_cast<int>(prompt.ask_integer(
      fmt::format("How many {} should be used for distributed training, on all machines together?", what), fallback,
      fits, expected));
}

}  // namespace

LaunchConfig ask_launch_config(Prompt& prompt) {
  LaunchConfig config{.num_processes = 1,
                      .same_network = true,
                      .downcast_bf16 = std::string("no"),
                      .tpu_env = std::vector<std::string>()};
  ask_compute_environment(prompt);
  const auto type = ask_type(prompt);
  config.distributed_type = type;
  const bool is_distributed = type != "NO";
  if (is_distributed) ask_machines(prompt, config);
  config.use_cpu =
      type == "MULTI_CPU" ||
      (type == "NO" &&
       prompt.ask_flag("Do you want to run your training on CPU only (even if a GPU is available)?", false));
  if (type == "MULTI_CPU") ask_mpirun(prompt, config);
  ask_deepspeed(prompt, config);
  if (is_distributed && config.distributed_type != "DEEPSPEED") ask_fsdp(prompt, config);
  if (config.distributed_type != "NO") ask_processes(prompt, config);
  if (!config.use_cpu) {
    config.gpu_ids =
        prompt.ask_text("What GPU(s) (by id) should be used for training on this machine as a comma-separated list?",
                        "all", is_list_of_numbers, "numbers, as in 0,1, or all");
    config.enable_cpu_affinity = prompt.ask_flag("Would you like to enable numa efficiency?", false);
  }
  if (!config.deepspeed_config.contains("deepspeed_config_file"))
    config.mixed_precision =
        choose_name(prompt, "Do you wish to use mixed precision?", {kMixedPrecisions.begin(), kMixedPrecisions.end()});
  // Accelerate's own default gathers in float8, and then trains no weight in float8 but FSDP2's.
  if (config.mixed_precision == "fp8")
    config.fp8_config = {
        {"fp8_backend", "AO"}, {"fp8_enable_fsdp_float8_all_gather", false}, {"fp8_pad_inner_dim", true}};
  return config;
}

}  // namespace accel::programs
