#include "reference/core/random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/core/Tensor.h>

namespace accel {

at::Generator make_generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

std::int64_t draw_int64(at::Generator generator) {
  return at::empty({}, at::kLong).random_(std::move(generator)).item<std::int64_t>();
}

}  // namespace accel
