// Explicit generators. The replacement of LibTorch's default generator is in interpose.cpp, see Note
// [Interposition].
#include "reference/rank_local/random.hpp"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <cstring>

#include "reference/core/errors.hpp"

namespace accel {

at::Generator make_generator(std::uint64_t seed) { return at::make_generator<at::CPUGeneratorImpl>(seed); }

// LibTorch validates the state before it assigns it, so a failed call leaves the generator unchanged. The
// c10::Error is translated because the state usually comes from a checkpoint and a C++ backtrace does not help
// the user.
void restore_generator(at::Generator& generator, const at::Tensor& state) {
  try {
    generator.set_state(state);
  } catch (const c10::Error& error) {
    throw ArgumentError(
        fmt::format("the tensor is not the state of a CPU generator: {}; expected the result of Generator::get_state()",
                    error.what_without_backtrace()));
  }
}

at::Generator generator_of_state(const at::Tensor& state) {
  auto generator = make_generator(0);
  restore_generator(generator, state);
  return generator;
}

bool has_state(const at::Generator& generator, const at::Tensor& state) {
  const auto own = generator.get_state();
  return own.numel() == state.numel() && std::memcmp(own.const_data_ptr(), state.const_data_ptr(), own.numel()) == 0;
}

at::Generator default_generator() { return at::detail::getDefaultCPUGenerator(); }

// The tensor has no dimensions: `random_` fills small CPU tensors serially, with one draw per element, so this
// advances the generator exactly as Python's expression does.
std::int64_t draw_int64(at::Generator generator) {
  return at::empty({}, at::kLong).random_(std::move(generator)).item<std::int64_t>();
}

}  // namespace accel
