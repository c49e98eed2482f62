#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

/// Random generators, with one default generator per rank.
///
/// LibTorch has one default CPU generator per process. Programs that link this library replace
/// `at::detail::getDefaultCPUGenerator` (see interpose.cpp), so that inside a `GeneratorScope` every draw, and also
/// `torch::manual_seed`, uses the generator of the scope.
///
///     const GeneratorScope scope(make_generator(42));
///     torch::manual_seed(7);               // seeds only the generator of this thread
///
/// Thread rule: a scope belongs to the thread that created it; a generator may be used by one thread at a time.
namespace accel {

/// Creates a CPU generator (mt19937), seeded like `torch.Generator().manual_seed(seed)`.
at::Generator make_generator(std::uint64_t seed);

/// Sets a CPU generator to a state from `Generator::get_state()`. Throws ArgumentError and leaves the generator
/// unchanged if `state` is not such a state.
void restore_generator(at::Generator& generator, const at::Tensor& state);

/// Creates a CPU generator with the given state. Throws ArgumentError as `restore_generator` does.
at::Generator generator_of_state(const at::Tensor& state);

/// Whether the generator is in a state from `Generator::get_state()`.
bool has_state(const at::Generator& generator, const at::Tensor& state);

/// Returns the generator that a draw without an explicit generator uses on this thread: that of the innermost scope, or
/// LibTorch's default generator.
at::Generator default_generator();

/// Draws one int64 from `generator`, like Python's `torch.empty((), dtype=torch.int64).random_(generator=g).item()`.
std::int64_t draw_int64(at::Generator generator);

/// Makes `generator` the default generator of this thread until the scope ends.
class GeneratorScope {
 public:
  explicit GeneratorScope(at::Generator generator);
  ~GeneratorScope();
  GeneratorScope(const GeneratorScope&) = delete;
  GeneratorScope& operator=(const GeneratorScope&) = delete;

 private:
  at::Generator generator_;
  const at::Generator* previous_;
};

/// Throws ConfigError if LibTorch's default generator was not replaced at load time, which happens when a program is
/// linked without exporting its symbols. (The same object file replaces the autocast cache in the same way.)
void verify_interposition();

}  // namespace accel
