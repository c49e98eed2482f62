// Process groups over PyTorch's ProcessGroupNCCL. Everything about launching (rank, store, attempt) is the same as over
// Gloo, so the store comes from gloo_backend.hpp.
#include "backends/nccl/nccl_backend.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <algorithm>
#include <iostream>

#include "backends/gloo/gloo_backend.hpp"
#include "reference/core/errors.hpp"

namespace accel::nccl {
namespace {

// The store is prefixed with the group's name, since NCCL stores its unique id under the same key in every group.
// Binding the device creates the communicator on the rank's own GPU; otherwise NCCL guesses it from the global rank.
Group make_group(const std::string& name, const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                 c10::Device device, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto prefixed = c10::make_intrusive<c10d::PrefixStore>(name, store);
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(prefixed, rank, size, options);
  backend->setBoundDeviceId(device);
  auto process_group = c10::make_intrusive<c10d::ProcessGroup>(prefixed, rank, size);
  process_group->setBackend(c10::DeviceType::CUDA, c10d::ProcessGroup::BackendType::NCCL, backend);
  process_group->setDefaultBackend(c10d::ProcessGroup::BackendType::NCCL);
  process_group->setGroupName(name);
  return Group(name, std::move(process_group));
}

}  // namespace

int num_gpus() { return c10::cuda::device_count(); }

bool is_available() { return num_gpus() > 0; }

void use_first_gpu(RankContext& context) {
  context.device = c10::Device(c10::kCUDA, 0);
  c10::cuda::set_device(0);
}

std::unique_ptr<RankContext> make_rank(const LaunchEnvironment& launch, std::chrono::milliseconds timeout) {
  const int num_gpus = c10::cuda::device_count();
  check_config(num_gpus > 0,
               "backend nccl: CUDA finds no GPU on this machine; check the driver and "
               "CUDA_VISIBLE_DEVICES, or use gloo or sim");
  auto context = std::make_unique<RankContext>();
  context->rank = launch.rank;
  context->world_size = launch.world_size;
  context->local_rank = launch.local_rank;
  context->local_world_size = launch.local_world_size;
  context->restart_count = launch.restart_count;
  context->backend = "nccl";
  context->device = c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(launch.local_rank % num_gpus));
  // Before the first group is created: NCCL and the caching allocator use the thread's current device.
  c10::cuda::set_device(context->device.index());
  context->generator = make_generator(c10::default_rng_seed_val);
  auto store = gloo::connect_store(launch, timeout);
  context->world = make_group("world", store, launch.rank, launch.world_size, context->device, timeout);
  // Group names are counted, not derived from members: every rank calls new_group for every group, members or not, so
  // the counters agree and two groups of the same ranks get different keys in the store.
  context->new_group = [store, timeout, device = context->device, rank = launch.rank,
                        count = 0](const std::vector<int>& ranks) mutable {
    const auto name = fmt::format("group{}", ++count);
    const auto member = std::find(ranks.begin(), ranks.end(), rank);
    if (member == ranks.end()) return Group();
    return make_group(name, store, static_cast<int>(member - ranks.begin()), static_cast<int>(ranks.size()), device,
                      timeout);
  };
  context->print = [](const std::string& text) { std::cout << text << std::flush; };
  return context;
}

}  // namespace accel::nccl
