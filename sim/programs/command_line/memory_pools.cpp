#include "sim/programs/command_line/memory_pools.hpp"

#include <dlfcn.h>
#include <jemalloc/jemalloc.h>
#include <sys/types.h>

#include <string>

// jemalloc reads this variable in every program that links accel::jemalloc. A training step allocates the same large
// tensors again and again: memory that is returned to the system between steps costs one page fault per 4 KiB (10 to 40
// % of a transformer's step). A finite decay time would not do: jemalloc then returns memory in the middle of a step,
// down to the least that was free a moment before. The small tcache_max keeps thousands of ranks' threads from each
// caching larger blocks.
extern "C" {
[[gnu::visibility("default")]] const char* malloc_conf =
    "tcache_max:4096,dirty_decay_ms:-1,muzzy_decay_ms:0,oversize_threshold:0";
}

namespace accel::programs {
namespace {

constexpr int kManyRanks = 512;

// MKL keeps its buffers for matrix products per thread, about 1 MB per rank. The call only has an effect before MKL's
// first use, hence the constructor; the symbol is looked up because LibTorch may be linked without MKL.
[[gnu::constructor]] void disable_mkl_thread_buffers() {
  if (auto* const disable_fast_mm = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "mkl_serv_disable_fast_mm")))
    disable_fast_mm();
}

}  // namespace

void limit_retained_memory(int num_ranks) {
  // Existing arenas each store their own decay time, so setting the default for future arenas is not enough.
  if (num_ranks <= kManyRanks) return;
  ssize_t milliseconds = 10'000;
  const auto set_decay = [&](const std::string& arenas) {
    mallctl((arenas + ".dirty_decay_ms").c_str(), nullptr, nullptr, &milliseconds, sizeof milliseconds);
  };
  unsigned num_arenas = 0;
  std::size_t size = sizeof num_arenas;
  mallctl("arenas.narenas", &num_arenas, &size, nullptr, 0);
  set_decay("arenas");  // the default of arenas that are created later
  for (unsigned arena = 0; arena < num_arenas; ++arena) set_decay("arena." + std::to_string(arena));
}

}  // namespace accel::programs
