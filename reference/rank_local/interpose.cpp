// Note [Interposition]
// LibTorch has one default CPU generator and one autocast weight cache per process. When ranks are threads, they would
// draw from each other's random stream, and `clear_cache()` on one rank would change the gradients of another rank
// that uses a weight twice. LibTorch reaches both through exported functions of libtorch_cpu, and calls these through
// the dynamic symbol table even from inside the library. The dynamic linker searches the program before the
// libraries, so a program that defines and exports functions with the same names replaces LibTorch's. Outside a
// GeneratorScope the replacement forwards to LibTorch's own generator, which dlsym(RTLD_NEXT) finds.
//
// A thread that a rank starts belongs to the rank: pthread_create passes the generator and the C library's random state
// of the creator on, as threads of a process share both. A thread that nobody with a scope has started uses LibTorch's
// own generator. Sanitizers replace pthread_create themselves, so their builds leave it out.
//
// Two conditions follow. The program must be linked with -rdynamic, or its definitions are not in the dynamic symbol
// table; verify_interposition checks that at start. And the signatures must be those of the LibTorch release in use.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/empty.h>
#include <dlfcn.h>
#include <pthread.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "reference/core/errors.hpp"
#include "reference/rank_local/libc_random.hpp"
#include "reference/rank_local/random.hpp"

namespace accel {
namespace {

// The default generator of this thread; null outside every GeneratorScope. The GeneratorScope owns the object.
thread_local const at::Generator* thread_generator = nullptr;

// Weights that autocast has cast on this thread, keyed by address. Each entry holds a reference to its source, so
// that no other tensor can be allocated at the same address while the entry exists.
struct CastWeight {
  at::Tensor source;
  at::Tensor cast;
};
thread_local std::unordered_map<const c10::TensorImpl*, CastWeight> thread_casts;

// The mangled name is spelled out because dlsym does not demangle. RTLD_NEXT skips the program, which contains
// the replacement below, and finds the definition in libtorch_cpu.
const at::Generator& libtorch_default_generator() {
  using Function = const at::Generator& (*)();
  static const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "_ZN2at6detail22getDefaultCPUGeneratorEv"));
  ensure(original != nullptr,
         "libtorch_cpu does not export at::detail::getDefaultCPUGenerator; expected LibTorch 2.11");
  return original();
}

}  // namespace

// Scopes nest: each one remembers the generator that it replaced. The thread-local pointer refers to the member,
// so a scope is neither copyable nor movable.
GeneratorScope::GeneratorScope(at::Generator generator)
    : generator_(std::move(generator)), previous_(std::exchange(thread_generator, &generator_)) {}

GeneratorScope::~GeneratorScope() { thread_generator = previous_; }

// Tests the replacement by its effect: a draw without an explicit generator must advance the generator of the
// scope. Comparing function addresses would test this object file only, not the calls inside libtorch_cpu.
void verify_interposition() {
  auto generator = make_generator(0);
  const GeneratorScope scope(generator);
  const auto before = generator.get_state();
  at::empty({1}, at::kLong).random_();  // libtorch_cpu looks up the default generator for this draw
  check_config(
      !before.equal(generator.get_state()),
      "this program does not export its symbols, so it does not replace LibTorch's default generator, and ranks in one "
      "process would share a random stream; link the program with -rdynamic (in CMake, "
      "target_link_libraries(... accel::accel) adds the flag), and without options that hide symbols");
}

}  // namespace accel

#if !defined(__has_feature)
#define __has_feature(feature) 0
#endif
#if !__has_feature(thread_sanitizer) && !__has_feature(address_sanitizer) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)

namespace accel {
namespace {

struct ThreadStart {
  void* (*run)(void*);
  void* argument;
  at::Generator generator;
  std::shared_ptr<LibcRandom> libc_random;
};

extern "C" void* run_with_generators(void* passed) {
  const std::unique_ptr<ThreadStart> start(static_cast<ThreadStart*>(passed));
  const GeneratorScope generator(start->generator);
  const LibcRandomScope libc_random(start->libc_random);
  return start->run(start->argument);
}

}  // namespace
}  // namespace accel

extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                              void* argument) noexcept {
  using Function = int(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static auto* const original = reinterpret_cast<Function*>(dlsym(RTLD_NEXT, "pthread_create"));
  if (accel::thread_generator == nullptr) return original(thread, attributes, run, argument);
  auto start = std::make_unique<accel::ThreadStart>(
      accel::ThreadStart{run, argument, *accel::thread_generator, accel::thread_libc_random()});
  const int error = original(thread, attributes, accel::run_with_generators, start.get());
  if (error == 0) start.release();
  return error;
}

#endif

namespace at::detail {

// Replaces LibTorch's function of the same name. at::detail calls it for every draw without an explicit
// generator, and torch::manual_seed calls it too, hence the scope's generator is what it seeds.
const Generator& getDefaultCPUGenerator() {
  return accel::thread_generator != nullptr ? *accel::thread_generator : accel::libtorch_default_generator();
}

}  // namespace at::detail

namespace at::autocast {

// Called when the outermost autocast scope of a thread ends (precision/autocast.cpp). It must not clear the
// caches of other ranks, which may still be in their forward pass.
void clear_cache() { accel::thread_casts.clear(); }

// Source: aten/src/ATen/autocast_mode.cpp, cached_cast, with a cache per thread instead of one per process. Only leaf
// weights in float32 are cached: other tensors are new in every forward pass. The cached cast is part of the graph,
// so two uses of a weight share one node and their gradients are summed in the lower precision, as in LibTorch.
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
