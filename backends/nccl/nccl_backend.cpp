// Process groups over PyTorch's ProcessGroupNCCL. Everything about launching (rank, store, attempt) is the same as over
// Gloo, so the store comes from gloo_backend.hpp, and every group also has Gloo for CPU tensors: what ranks exchange
// about sizes and objects must not make the host wait for the GPU.
#include "backends/nccl/nccl_backend.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <iostream>
#include <utility>

#include "backends/gloo/gloo_backend.hpp"
#include "backends/nccl/gpu_waits.hpp"
#include "reference/core/errors.hpp"
#include "reference/rank_local/exit_point.hpp"

namespace accel::nccl {
namespace {

struct Joined {
  c10::intrusive_ptr<c10d::ProcessGroup> group;
  c10::intrusive_ptr<c10d::Backend> nccl, gloo;      // whose calls are not recorded
  std::shared_ptr<recorder::RankRecorder> recorder;  // null: none
};
using Groups = std::vector<Joined>;

// The groups that this process has joined and not left. Never destroyed, because they end while the process exits.
Groups& joined_groups() {
  static auto* const groups = new Groups;
  return *groups;
}

std::atomic<bool> is_ending = false;

// The end of a process that has not left its groups. PyTorch's watchdog threads call CUDA, and aborting a group does
// not wait for its threads: while CUDA is unloaded they would throw or crash, and the exit code would be lost. So
// nothing is unloaded.
void abort_groups_at_exit(int code, void* /*unused*/) {
  if (joined_groups().empty()) return;
  is_ending = true;
  for (const auto& [group, nccl, gloo, recorder] : std::exchange(joined_groups(), {})) {
    try {
      nccl->abort();
    } catch (const std::exception& error) {
      std::cerr << "accel: warning: group " << group->getGroupName() << ": not aborted: " << error.what() << std::endl;
    }
  }
  flush_and_exit(code);
}

std::terminate_handler handler_of_program = nullptr;

// A watchdog that finds a failed or late collective throws on its own thread, where nobody can catch the exception.
// Ends the process with the error of the rank instead of SIGABRT.
[[noreturn]] void end_with_error_of_watchdog() {
  while (is_ending) pause();  // an aborted group is an error to its watchdog; the process ends with its own exit code
  try {
    if (const auto error = std::current_exception()) std::rethrow_exception(error);
  } catch (const std::exception& error) {
    if (std::string(error.what()).find("NCCL") != std::string::npos && !joined_groups().empty()) {
      const std::string text =
          comm_error(fmt::format("rank {}", joined_groups().front().group->getRank()), error).what();
      // So that its wait explains it.
      if (const auto& recorder = joined_groups().front().recorder)
        recorder->set_end(recorder::RankEnd::kConsequence, text.substr(0, text.find('\n')));
      std::cerr << "error: " << text << std::endl;
      flush_and_exit(1);
    }
  } catch (...) {
  }
  if (handler_of_program != nullptr) handler_of_program();
  std::abort();
}

// The store is prefixed with the group's name, since NCCL stores its unique id under the same key in every group.
// The device is bound to the group and not to its backend, which `setBackend` binds to the group's. Without it NCCL
// guesses the GPU from the global rank, which hangs with several machines.
Group make_group(const std::string& name, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 c10::Device device, const std::shared_ptr<recorder::GpuWaits>& gpu_waits,
                 const gloo::GlooOptions& options) {
  auto nccl_options = c10d::ProcessGroupNCCL::Options::create();
  nccl_options->timeout = options.timeout;
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(name, store);
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(prefixed, rank, size);
  process_group->setBoundDeviceId(device);
  c10::intrusive_ptr<c10d::Backend> nccl =
      c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank, size, nccl_options);
  nccl->setBoundDeviceId(device);  // setBackend binds the one that records
  auto gloo = gloo::make_backend(name, store, rank, size, options);
  Joined joined{process_group, nccl, gloo, options.recorder};
  // One order of calls for both: the program makes them in one order.
  if (const auto recorder = gloo::group_recorder(name, size, options)) {
    nccl = recorder::recorded(std::move(nccl), *recorder, gpu_waits);
    gloo = recorder::recorded(std::move(gloo), *recorder);
  }
  process_group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, std::move(nccl));
  process_group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, std::move(gloo));
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  process_group->setGroupName(name);
  joined_groups().push_back(std::move(joined));
  return Group(name, std::move(process_group));
}

// Without the barrier a rank that ends first could abort the last collectives of its peers. The program knows nothing
// of it, so it is not recorded.
void leave_groups() {
  c10::cuda::device_synchronize();
  std::vector<at::Tensor> nothing{at::zeros({1})};
  const auto& world = joined_groups().front();
  try {
    world.gloo->allreduce(nothing)->wait();
  } catch (const std::exception& error) {
    throw comm_error(fmt::format("rank {}: the end of the job", world.group->getRank()), error);
  }
  for (const auto& joined : std::exchange(joined_groups(), {})) joined.nccl->shutdown();
}

}  // namespace

void use_gpu(RankContext& context, std::optional<int> index) {
  const int chosen = index.value_or(context.local_rank % num_gpus());
  context.device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(chosen));
  c10::cuda::set_device(context.device.index());
}

std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& of_launcher, const gloo::GlooOptions& options,
                                       std::optional<int> index) {
  check_config(
      is_available(),
      "backend nccl: CUDA finds no GPU on this machine; check the driver and CUDA_VISIBLE_DEVICES, or use gloo "
      "or sim");
  // Before the first group: NCCL and the caching allocator use the thread's current device.
  const auto prepare = [&](RankContext& context) {
    check_config(
        context.local_world_size <= num_gpus(),
        "backend nccl: {} ranks on this machine, but CUDA finds {} GPUs; start at most one rank per GPU, or set "
        "ACCEL_BACKEND=gloo, under which ranks may share a GPU",
        context.local_world_size, num_gpus());
    context.backend = "nccl";
    use_gpu(context, index);
    offer_graphs(context);
    handler_of_program = std::set_terminate(end_with_error_of_watchdog);
    on_exit(abort_groups_at_exit, nullptr);
  };
  // The GPU of the rank's thread, which may not be that of a thread that creates a later group.
  const auto make = [gpu_waits = std::shared_ptr<recorder::GpuWaits>(), chosen = std::optional<c10::Device>()](
                        const std::string& name, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                        const gloo::GlooOptions& options) mutable {
    if (!chosen) chosen.emplace(c10::kCUDA, c10::cuda::current_device());
    if (options.recorder && !gpu_waits) gpu_waits = watch_gpu(options.recorder, *chosen);
    return make_group(name, store, rank, size, *chosen, gpu_waits, options);
  };
  auto context = gloo::make_rank(of_launcher, options, make, prepare);
  context->leave = leave_groups;
  return context;
}

}  // namespace accel::nccl
