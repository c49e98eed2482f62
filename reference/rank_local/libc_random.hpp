#pragma once

#include <cstdlib>
#include <memory>

namespace accel {

/// The state of `rand`, `random`, `drand48` and their siblings for one rank: the C library has one per process, which
/// ranks in one process would share. It starts as in a new process, or from the seed that the process has set before.
///
///     const LibcRandomScope scope(make_libc_random());
///     std::srand(1);  // seeds this thread's rank
///
/// Programs that link this library replace these functions (see interpose.cpp); outside a scope they are the C
/// library's. `rand_r`, `erand48` and generators of the program, such as a static std::mt19937, are not replaced.
/// Thread rule: a scope belongs to its thread. Threads that the rank starts share its state, which is locked.
class LibcRandom;
std::shared_ptr<LibcRandom> make_libc_random();

/// Makes `state` that of this thread until the scope ends; null: the C library's own.
class LibcRandomScope {
 public:
  explicit LibcRandomScope(std::shared_ptr<LibcRandom> state);
  ~LibcRandomScope();
  LibcRandomScope(const LibcRandomScope&) = delete;
  LibcRandomScope& operator=(const LibcRandomScope&) = delete;

 private:
  std::shared_ptr<LibcRandom> previous_;
};

/// The state of this thread; null outside every scope.
std::shared_ptr<LibcRandom> thread_libc_random();

}  // namespace accel
