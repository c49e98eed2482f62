#include "reference/core/random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "reference/core/errors.hpp"

namespace accel {

at::Generator make_generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

void restore_generator(at::Generator& generator, const at::Tensor& state) {
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw ArgumentError(
        fmt::format("a tensor that is no state of a CPU generator: {}", error.what_without_backtrace()));
  }
}

at::Generator generator_of_state(const at::Tensor& state) {
  auto generator = make_generator(0);
  restore_generator(generator, state);
  return generator;
}

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

std::int64_t draw_int64(at::Generator generator) {
  return at::empty({}, at::kLong).random_(std::move(generator)).item<std::int64_t>();
}

}  // namespace accel
