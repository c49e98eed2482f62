// Note [Exit]
// std::exit runs the process's static destructors on the calling thread. A simulated rank is a thread, and the other
// ranks still use the objects that these destructors destroy: a program's --help once ended in a segmentation fault.
// Therefore this library defines `exit` itself, which takes precedence over libc's (see Note [Interposition]). On the
// thread of a rank it jumps back to the frame that started the rank. The jump skips the destructors of the rank's
// stack frames. The C++ standard calls that undefined behaviour; with glibc and GCC or Clang, longjmp only restores
// registers, and skipping stack destructors is exactly what std::exit promises.
//
// `_exit`, `_Exit` and `quick_exit` do the same: they would end the process with the code of one rank while the others
// are in the middle of their work. A process that a rank has forked still ends by them. A build with sanitizers does
// not define `_exit` and `_Exit`, since the sanitizer does.
#include "reference/rank_local/exit_point.hpp"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include "reference/rank_local/call_site.hpp"

namespace accel {
namespace {

// One ExitPoint lives on the stack of each running run_until_exit. `code` is stored here and not passed through
// longjmp, because longjmp cannot transport the value 0.
struct ExitPoint {
  std::jmp_buf place;
  int code = 0;
  const char* function = "";
};

// Innermost exit point of this thread; null on threads that do not run a rank.
thread_local ExitPoint* thread_exit_point = nullptr;
// Number of ranks that run in the process: an exit on another thread must not run static destructors while it is
// above zero.
std::atomic<int> num_exit_points = 0;
// The process of these ranks. A forked child is a copy of one thread, with its exit point, but has another number.
std::atomic<pid_t> process_of_ranks = 0;

// Not _exit, which is defined below.
[[noreturn]] void end_process_at_once(int code) {
  while (true) syscall(SYS_exit_group, code);
}

// No rank runs, so libc's `exit` is safe. It needs dlsym because the definition of `exit` below hides it. The
// fallback covers a statically linked libc, where no next definition exists.
[[noreturn]] void exit_process(const char* symbol, int code) {
  using Function = void (*)(int);
  const auto original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, symbol));
  if (original != nullptr) original(code);
  end_process_at_once(code);
}

// Without static destructors, because they would race with the ranks. The status is a failure whatever `code` is: the
// ranks did not finish.
[[noreturn]] void exit_outside_ranks(const char* function, int code) {
  std::cout.flush();  // before the message
  std::cerr << "accel: error: " << function << "(" << code
            << ") was called on a thread that is not a rank while simulated ranks were running; the process and all "
               "ranks end now; call it on the thread of a rank"
            << std::endl;
  flush_and_exit(EXIT_FAILURE);
}

}  // namespace

// Streams are flushed by hand since the end of a process does not.
void flush_and_exit(int code) {
  std::cout.flush();
  std::fflush(nullptr);
  end_process_at_once(code);
}

void end_process(int code) {
#ifdef ACCEL_SANITIZED
  std::exit(code);
#else
  flush_and_exit(code);
#endif
}

// setjmp returns twice. Locals that change between the two returns have no defined value after the jump: `before`
// does not change, and `point` changes only through its published address, so it is in memory. `Restore` covers a
// normal return and exceptions. The jump goes back to before its construction, so that path restores the pointer
// explicitly.
ProgramEnd run_until_exit(const std::function<int()>& program) {
  ExitPoint point;
  auto* const before = thread_exit_point;
  struct Count {
    Count() {
      process_of_ranks = getpid();
      ++num_exit_points;
    }
    ~Count() { --num_exit_points; }
  } const count;
  if (setjmp(point.place) != 0) {
    thread_exit_point = before;
    CallSite::forget();
    return {.code = point.code, .by_exit = true, .function = point.function};
  }
  thread_exit_point = &point;
  struct Restore {
    ExitPoint* before;
    ~Restore() { thread_exit_point = before; }
  } const restore{before};
  return {.code = program(), .by_exit = false};
}

namespace detail {

// External linkage in the namespace `detail` only so that the extern "C" functions below can call these.

// Whether a call in this process would end ranks.
bool ends_ranks() { return num_exit_points > 0 && getpid() == process_of_ranks; }

[[noreturn]] void exit_from_program(const char* function, int code) {
  if (auto* point = thread_exit_point) {
    point->code = code;
    point->function = function;
    std::longjmp(point->place, 1);
  }
  exit_outside_ranks(function, code);
}

[[noreturn]] void leave(const char* function, const char* symbol, int code) {
  if (ends_ranks()) exit_from_program(function, code);
  exit_process(symbol, code);
}

// Forked children of any thread call it, in which nothing but a system call is safe.
[[noreturn]] void leave_at_once(const char* function, int code) {
  if (ends_ranks()) exit_from_program(function, code);
  end_process_at_once(code);
}

}  // namespace detail
}  // namespace accel

extern "C" {
[[gnu::visibility("default")]] void exit(int code) noexcept { accel::detail::leave("std::exit", "exit", code); }
[[gnu::visibility("default")]] void quick_exit(int code) noexcept {
  accel::detail::leave("std::quick_exit", "quick_exit", code);
}
#ifndef ACCEL_SANITIZED
[[gnu::visibility("default")]] void _exit(int code) { accel::detail::leave_at_once("_exit", code); }
[[gnu::visibility("default")]] void _Exit(int code) noexcept { accel::detail::leave_at_once("_Exit", code); }
#endif
}
