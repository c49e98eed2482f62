// Note [Exit]
// std::exit runs the process's destructors on the thread that calls it. A simulated rank is a thread, and the other
// ranks still use what they destroy: a program's own --help ended in a segmentation fault. So a program defines `exit`
// itself, which wins over libc's at link time (see Note [Interposition]). On a rank's thread it jumps back to where the
// rank began. The jump skips the destructors of the rank's frames, which the standard leaves undefined; with glibc and
// GCC or Clang it restores registers, and what std::exit promises is just that no such destructor runs.
#include "reference/core/exit_point.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "reference/core/call_site.hpp"

namespace accel {
namespace {

struct ExitPoint {
  std::jmp_buf place;
  int code = 0;
};

thread_local ExitPoint* thread_exit_point = nullptr;
std::atomic<int> num_exit_points = 0;

[[noreturn]] void exit_process(int code) {
  using Function = void (*)(int);
  const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "exit"));
  if (original != nullptr) original(code);
  _exit(code);
}

[[noreturn]] void exit_beside_ranks(int code) {
  std::cout.flush();
  std::cerr << "accel: error: a thread that is no rank called std::exit(" << code
            << ") while simulated ranks ran; the process ends, with all ranks" << std::endl;
  std::fflush(nullptr);
  _exit(EXIT_FAILURE);
}

}  // namespace

ProgramEnd run_until_exit(const std::function<int()>& program) {
  ExitPoint point;
  auto* const before = thread_exit_point;
  struct Count {
    Count() { ++num_exit_points; }
    ~Count() { --num_exit_points; }
  } const count;
  if (setjmp(point.place) != 0) {
    thread_exit_point = before;
    CallSite::forget();
    return {.code = point.code, .by_exit = true};
  }
  thread_exit_point = &point;
  struct Restore {
    ExitPoint* before;
    ~Restore() { thread_exit_point = before; }
  } const restore{before};
  return {.code = program(), .by_exit = false};
}

namespace detail {

// For `exit` below.
[[noreturn]] void exit_from_program(int code) {
  if (auto* point = thread_exit_point) {
    point->code = code;
    std::longjmp(point->place, 1);
  }
  if (num_exit_points > 0) exit_beside_ranks(code);
  exit_process(code);
}

}  // namespace detail
}  // namespace accel

extern "C" [[gnu::visibility("default")]] void exit(int code) noexcept { accel::detail::exit_from_program(code); }
