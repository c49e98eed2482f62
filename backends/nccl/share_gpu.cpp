// Ranks that are threads of one process. LibTorch has one default generator per GPU, from which all would draw.
// The function that returns it is replaced: see Note [Interposition] in reference/rank_local/interpose.cpp.
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <c10/core/DeviceGuard.h>
#include <c10/cuda/CUDAFunctions.h>
#include <dlfcn.h>

#include <utility>

#include "backends/nccl/nccl_backend.hpp"
#include "reference/core/errors.hpp"

namespace accel::nccl {
namespace {

// The generator of this thread's rank; null outside every GpuShare, which owns the object.
thread_local const at::Generator* thread_generator = nullptr;

const at::Generator& libtorch_generator(c10::DeviceIndex device) {
  using Function = const at::Generator& (*)(c10::DeviceIndex);
  static const auto original =
      reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN2at4cuda6detail23getDefaultCUDAGeneratorEa"));
  ensure(original != nullptr,
         "libtorch_cuda does not export at::cuda::detail::getDefaultCUDAGenerator; expected LibTorch 2.11");
  return original(device);
}

class GpuShare {
 public:
  explicit GpuShare(RankContext& context) : gpu_(c10::Device(c10::kCUDA, c10::cuda::current_device())) {
    use_gpu(context);
    generator_ = at::cuda::detail::createCUDAGenerator(context.device.index());
    generator_.set_current_seed(c10::default_rng_seed_val);
    previous_ = std::exchange(thread_generator, &generator_);
  }
  ~GpuShare() { thread_generator = previous_; }
  GpuShare(const GpuShare&) = delete;
  GpuShare& operator=(const GpuShare&) = delete;

 private:
  c10::DeviceGuard gpu_;  // restores the thread's GPU
  at::Generator generator_;
  const at::Generator* previous_ = nullptr;
};

}  // namespace

std::shared_ptr<void> share_gpu(RankContext& context) { return std::make_shared<GpuShare>(context); }

const at::Generator& default_generator_of(c10::DeviceIndex device) {
  const auto asked = device == -1 ? c10::cuda::current_device() : device;
  const bool is_of_rank = thread_generator != nullptr && thread_generator->device().index() == asked;
  return is_of_rank ? *thread_generator : libtorch_generator(asked);
}

}  // namespace accel::nccl

namespace at::cuda::detail {

const Generator& getDefaultCUDAGenerator(DeviceIndex device) { return accel::nccl::default_generator_of(device); }

}  // namespace at::cuda::detail
