#include "sim/programs/runtime/memory_pools.hpp"

#include <dlfcn.h>
#include <jemalloc/jemalloc.h>
#include <sys/types.h>

#include <string>

// Read by jemalloc, in every program that links accel::jemalloc. A training step asks for the same large tensors again
// and again: memory that is given back between steps costs a page fault for each 4 KiB of them (10 to 40 % of a
// transformer's step). A time of decay would not do: jemalloc gives back what is above the least that lay free a moment
// before, in the midst of a step. Small pieces are not kept by each of thousands of ranks' threads.
extern "C" {
[[gnu::visibility("default")]] const char* malloc_conf =
    "tcache_max:4096,dirty_decay_ms:-1,muzzy_decay_ms:0,oversize_threshold:0";
}

namespace accel::programs {
namespace {

constexpr int kManyRanks = 512;

// MKL would keep the buffers of each thread's products, about 1 MB a rank. It listens only before its first use.
[[gnu::constructor]] void let_threads_share_buffers_of_products() {
  if (auto* const disable_fast_mm = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "mkl_serv_disable_fast_mm")))
    disable_fast_mm();
}

}  // namespace

void give_back_free_memory_of(int num_ranks) {
  if (num_ranks <= kManyRanks) return;
  ssize_t milliseconds = 10'000;
  const auto set_decay = [&](const std::string& arenas) {
    mallctl((arenas + ".dirty_decay_ms").c_str(), nullptr, nullptr, &milliseconds, sizeof milliseconds);
  };
  unsigned num_arenas = 0;
  std::size_t size = sizeof num_arenas;
  mallctl("arenas.narenas", &num_arenas, &size, nullptr, 0);
  set_decay("arenas");  // of those to come
  for (unsigned arena = 0; arena < num_arenas; ++arena) set_decay("arena." + std::to_string(arena));
}

}  // namespace accel::programs
