// Note [Interposition]
// LibTorch keeps one default CPU generator and one autocast weight cache per process. With ranks as threads, ranks
// would draw from each other's stream, and one rank's `clear_cache()` would change another's gradients where a weight
// is used twice. Both are reached through exported functions of libtorch_cpu that are called through the dynamic
// symbol table, so a program that defines and exports functions of the same names wins at load time. Outside a
// GeneratorScope the generator is libtorch's own, found by dlsym(RTLD_NEXT).
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>

#include <unordered_map>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/core/random.hpp"

namespace accel {
namespace {

// The default generator of this thread; null outside every GeneratorScope.
thread_local const at::Generator* thread_generator = nullptr;

// Weights cast by autocast on this thread. The source is kept, so that its address stays its own.
struct CastWeight {
  at::Tensor source;
  at::Tensor cast;
};
thread_local std::unordered_map<const c10::TensorImpl*, CastWeight> thread_casts;

const at::Generator& libtorch_default_generator() {
  using Function = const at::Generator& (*)();
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN2at6detail22getDefaultCPUGeneratorEv"));
  ensure(original != nullptr, "libtorch_cpu does not export at::detail::getDefaultCPUGenerator; use LibTorch 2.11");
  return original();
}

}  // namespace

GeneratorScope::GeneratorScope(at::Generator generator)
    : generator_(std::move(generator)), previous_(std::exchange(thread_generator, &generator_)) {}

GeneratorScope::~GeneratorScope() { thread_generator = previous_; }

void verify_interposition() {
  auto generator = make_generator(0);
  const GeneratorScope scope(generator);
  const auto before = generator.get_state();
  at::empty({1}, at::kLong).random_();  // looks the default generator up inside libtorch_cpu
  check_config(!before.equal(generator.get_state()),
               "this program does not export its symbols, so LibTorch's default generator was not replaced, and ranks "
               "in one process "
               "would share a random stream; link it with -rdynamic (CMake: target_link_libraries(... accel::accel) "
               "does it), and "
               "with nothing that hides symbols again");
}

}  // namespace accel

namespace at::detail {

const Generator& getDefaultCPUGenerator() {
  return accel::thread_generator != nullptr ? *accel::thread_generator : accel::libtorch_default_generator();
}

}  // namespace at::detail

namespace at::autocast {

void clear_cache() { accel::thread_casts.clear(); }

// Source: aten/src/ATen/autocast_mode.cpp, cached_cast, with the cache of this thread in place of the process's.
Tensor cached_cast(ScalarType to_type, const Tensor& argument, DeviceType device_type) {
  if (!is_eligible(argument, device_type) || argument.scalar_type() == to_type) return argument;
  const bool cacheable = to_type == get_lower_precision_fp_from_device_type(device_type) &&
                         argument.scalar_type() == kFloat && argument.requires_grad() && argument.is_leaf() &&
                         !argument.is_view() && is_autocast_cache_enabled();
  if (!cacheable) return argument.to(to_type);
  auto& entry = accel::thread_casts[argument.unsafeGetTensorImpl()];
  if (!entry.cast.defined()) entry = {argument, argument.to(to_type)};
  return entry.cast;
}

}  // namespace at::autocast
