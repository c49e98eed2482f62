#pragma once

namespace accel {

/// Calls `visit(name, member)` for every key of the file, in alphabetical order. `Config`: LaunchConfig, const or not.
template <typename Config, typename Visit>
void for_each_field(Config& config, Visit&& visit) {
  visit("command_file", config.command_file);
  visit("commands", config.commands);
  visit("compute_environment", config.compute_environment);
  visit("debug", config.debug);
  visit("deepspeed_config", config.deepspeed_config);
  visit("distributed_type", config.distributed_type);
  visit("downcast_bf16", config.downcast_bf16);
  visit("dynamo_config", config.dynamo_config);
  visit("enable_cpu_affinity", config.enable_cpu_affinity);
  visit("fp8_config", config.fp8_config);
  visit("fsdp_config", config.fsdp_config);
  visit("gpu_ids", config.gpu_ids);
  visit("machine_rank", config.machine_rank);
  visit("main_process_ip", config.main_process_ip);
  visit("main_process_port", config.main_process_port);
  visit("main_training_function", config.main_training_function);
  visit("megatron_lm_config", config.megatron_lm_config);
  visit("mixed_precision", config.mixed_precision);
  visit("mpirun_config", config.mpirun_config);
  visit("num_machines", config.num_machines);
  visit("num_processes", config.num_processes);
  visit("parallelism_config", config.parallelism_config);
  visit("rdzv_backend", config.rdzv_backend);
  visit("same_network", config.same_network);
  visit("tpu_env", config.tpu_env);
  visit("tpu_name", config.tpu_name);
  visit("tpu_use_cluster", config.tpu_use_cluster);
  visit("tpu_use_sudo", config.tpu_use_sudo);
  visit("tpu_vm", config.tpu_vm);
  visit("tpu_zone", config.tpu_zone);
  visit("use_cpu", config.use_cpu);
}

}  // namespace accel
