#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>

/// Random generators, one default generator per rank.
///
/// LibTorch has one default CPU generator per process. Programs of this library replace
/// `at::detail::getDefaultCPUGenerator` (see interpose.cpp), so that inside a `GeneratorScope` every draw, and
/// `torch::manual_seed` too, goes to the scope's generator.
///
///     const GeneratorScope scope(make_generator(42));
///     torch::manual_seed(7);               // seeds this thread's generator alone
///
/// Thread rule: a scope belongs to the thread that made it; a generator may be used by one thread at a time.
namespace accel {

/// A CPU generator of mt19937, seeded like `torch.Generator().manual_seed(seed)`.
at::Generator make_generator(std::uint64_t seed);

/// Sets a CPU generator to a state from `Generator::get_state()`. Throws ArgumentError, and changes nothing, if it is
/// none.
void restore_generator(at::Generator& generator, const at::Tensor& state);

/// A CPU generator in such a state. Throws ArgumentError if it is none.
at::Generator generator_of_state(const at::Tensor& state);

/// The generator that a draw without one takes on this thread: the innermost scope's, else LibTorch's own.
at::Generator default_generator();

/// One int64 from `generator`, as Python's `torch.empty((), dtype=torch.int64).random_(generator=g).item()`.
std::int64_t draw_int64(at::Generator generator);

/// Makes `generator` the default of this thread until the scope ends.
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

/// Throws ConfigError if LibTorch's default generator did not yield to ours at load time, which happens when a program
/// was linked without exporting its symbols. (The autocast cache is replaced by the same object file, in the same way.)
void verify_interposition();

}  // namespace accel
