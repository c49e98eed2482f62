#include "sim/programs/sim_calibrate/device_timing.hpp"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <limits>

#include "reference/core/device.hpp"

namespace accel::programs {
namespace {

using Clock = std::chrono::steady_clock;

constexpr double kBatchSeconds = 0.1;
constexpr int kTimedBatches = 5;

double seconds_of_batch(c10::Device device, int calls, const std::function<void()>& call) {
  wait_for(device);
  const auto begin = Clock::now();
  for (int index = 0; index < calls; ++index) call();
  wait_for(device);
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The fastest of several batches: other work on the machine only slows a batch.
double seconds_of(c10::Device device, const std::function<void()>& call) {
  int calls = 1;
  while (seconds_of_batch(device, calls, call) < kBatchSeconds && calls < (1 << 20)) calls *= 2;
  double best = std::numeric_limits<double>::infinity();
  for (int batch = 0; batch < kTimedBatches; ++batch)
    best = std::min(best, seconds_of_batch(device, calls, call) / calls);
  return best;
}

struct Shape {
  std::int64_t m, n, k;
};
constexpr Shape kLargeShapes[] = {
    {4096, 4096, 4096}, {8192, 8192, 8192}, {2048, 2048, 13312}, {1024, 10240, 5120}, {4096, 16384, 4096}};
constexpr Shape kSmallShapes[] = {{256, 256, 256}, {512, 512, 512}};  // for a CPU

double best_matmul(c10::Device device) {
  const auto options = at::TensorOptions(device).dtype(at::kBFloat16);
  double best = 0;
  const auto measure = [&](const Shape& shape) {
    const auto a = at::randn({shape.m, shape.k}, options), b = at::randn({shape.k, shape.n}, options);
    const double operations =
        2.0 * static_cast<double>(shape.m) * static_cast<double>(shape.n) * static_cast<double>(shape.k);
    best = std::max(best, operations / seconds_of(device, [&] { at::matmul(a, b); }));
  };
  if (device.is_cpu())
    std::for_each(std::begin(kSmallShapes), std::end(kSmallShapes), measure);
  else
    std::for_each(std::begin(kLargeShapes), std::end(kLargeShapes), measure);
  return best;
}

double copy_rate(c10::Device device) {
  const std::int64_t bytes = device.is_cpu() ? std::int64_t{64} << 20 : std::int64_t{1} << 30;
  const auto from = at::zeros({bytes}, at::TensorOptions(device).dtype(at::kByte));
  auto to = at::empty_like(from);
  return 2.0 * static_cast<double>(bytes) / seconds_of(device, [&] { to.copy_(from); });
}

}  // namespace

DeviceRates measure_device(c10::Device device) {
  const c10::NoGradGuard no_grad;
  auto number = at::zeros({1}, at::TensorOptions(device));
  return {.matmul_flops_per_second = best_matmul(device),
          .memory_bytes_per_second = copy_rate(device),
          .kernel_seconds = seconds_of(device, [&] { number.add_(1); })};
}

}  // namespace accel::programs
