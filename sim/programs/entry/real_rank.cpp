// Chooses the backend of a real rank: an explicit name, or NCCL if a GPU is usable and the CPU was not requested, else
// Gloo. A process without a launcher gets a world of one, which needs no connections.
#include "sim/programs/entry/real_rank.hpp"

#include <algorithm>

#include "backends/gloo/gloo_backend.hpp"
#include "backends/launch/cpu_plan.hpp"
#include "backends/nccl/nccl_backend.hpp"
#include "reference/config/environment.hpp"
#include "reference/core/errors.hpp"

namespace accel::programs {

namespace {

constexpr std::chrono::minutes kMaxPatience{5};  // for the pod of rank 0 to start

bool asks_for_cpu() { return environment_flag("ACCELERATE_USE_CPU").value_or(false); }

// Where the variables let a rank compute.
struct DeviceChoice {
  bool is_gpu = false;
  std::optional<int> index = {};  // of the GPU; otherwise that of the local rank
};

// Source: accelerate/state.py, PartialState.__init__.
DeviceChoice chosen_device() {
  const auto device = environment("ACCELERATE_TORCH_DEVICE");
  if (!device) return {.is_gpu = nccl::is_available() && !asks_for_cpu()};
  const bool has_index = device->starts_with("cuda:") && device->size() > 5 && device->size() < 9 &&
                         device->find_first_not_of("0123456789", 5) == std::string::npos;
  const bool is_gpu = *device == "cuda" || has_index;
  check_config(is_gpu || *device == "cpu", "ACCELERATE_TORCH_DEVICE: expected cpu, cuda or cuda:N, got '{}'", *device);
  check_config(!is_gpu || !asks_for_cpu(),
               "ACCELERATE_TORCH_DEVICE is {}, but ACCELERATE_USE_CPU asks for the CPU; unset one of them", *device);
  const auto index = has_index ? std::optional(std::stoi(device->substr(5))) : std::nullopt;
  check_config(!is_gpu || index.value_or(0) < nccl::num_gpus(),
               "ACCELERATE_TORCH_DEVICE is {}, but CUDA finds {} GPUs on this machine", *device, nccl::num_gpus());
  return {.is_gpu = is_gpu, .index = index};
}

// Not if a launcher has bound the rank to CPUs of its own: accel's, or srun or mpirun. Source:
// accelerate/utils/environment.py, set_numa_affinity.
void pin_to_cpus(const LaunchEnvironment& launch) {
  if (!environment_flag("ACCELERATE_CPU_AFFINITY").value_or(false) || environment(launcher::kIsPinned)) return;
  launcher::pin_to_share(launch.local_rank, launch.local_world_size);
}

}  // namespace

std::unique_ptr<RankContext> make_real_rank(const std::string& backend) {
  const auto launch = read_launch_environment();
  const auto device = backend.empty() ? chosen_device() : DeviceChoice();
  const bool uses_gpu = device.is_gpu;
  pin_to_cpus(launch);
  if (!launch.is_launched && backend.empty()) {
    auto alone = make_single_rank();
    if (uses_gpu) {
      nccl::use_gpu(*alone, device.index);
      nccl::offer_graphs(*alone);
    }
    return alone;
  }
  // Gloo advertises the address of the interface that reaches the master: the host's name may resolve to loopback.
  const auto timeout = collective_timeout();
  const auto patience = is_in_pod() ? std::min<std::chrono::milliseconds>(timeout, kMaxPatience) : kMaxPatience * 0;
  const gloo::GlooOptions options{.timeout = timeout,
                                  .hostname = gloo::local_address_for(launch.master_address, patience)};
  const auto chosen = environment("ACCEL_BACKEND");
  check_config(!chosen || *chosen == "nccl" || *chosen == "gloo", "ACCEL_BACKEND: expected nccl or gloo, got '{}'",
               chosen.value_or(""));
  check_config(chosen != "nccl" || !asks_for_cpu(),
               "ACCEL_BACKEND is nccl, but ACCELERATE_USE_CPU asks for the CPU; unset one of them");
  check_config(chosen != "nccl" || environment("ACCELERATE_TORCH_DEVICE") != "cpu",
               "ACCEL_BACKEND is nccl, but ACCELERATE_TORCH_DEVICE is cpu; unset one of them");
  if (backend == "nccl" || (backend.empty() && chosen.value_or(uses_gpu ? "nccl" : "gloo") == "nccl")) {
    check_config(!device.index || launch.world_size == 1,
                 "ACCELERATE_TORCH_DEVICE is cuda:{} on {} ranks, but NCCL needs a GPU for each; unset it, or set "
                 "ACCEL_BACKEND=gloo, under which ranks may share a GPU",
                 device.index.value_or(0), launch.world_size);
    return nccl::make_rank(launch, options, device.index);
  }
  auto rank = gloo::make_rank(launch, options);
  if (uses_gpu) nccl::use_gpu(*rank, device.index);  // ranks over Gloo may share a GPU
  return rank;
}

void keep_until_exit(std::unique_ptr<RankContext> context) {
  // Allocated and never destroyed: the connections must stay open until the kernel closes them with the process.
  static auto* const kept = new std::vector<std::unique_ptr<RankContext>>;
  kept->push_back(std::move(context));
}

}  // namespace accel::programs
