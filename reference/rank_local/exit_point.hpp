#pragma once

#include <functional>

namespace accel {

/// Describes how the program of a rank ended.
struct ProgramEnd {
  int code = 0;
  bool by_exit = false;       ///< The program called std::exit, so objects on its stack were not destroyed.
  const char* function = "";  ///< "std::exit", "_exit", ...
};

/// Runs `program` on a thread that simulates a process: std::exit, std::quick_exit and _exit on this
/// thread end the call instead of the process.
///
/// As in a real process, std::exit does not destroy objects on the stack. A call of std::exit on a thread that
/// `program` started ends the whole process: it prints a message, flushes the standard streams and runs no static
/// destructors, because other ranks still use those objects. Thread rule: any thread; may run on several threads at
/// once.
ProgramEnd run_until_exit(const std::function<int()>& program);

/// Ends the process after flushing standard streams. Destructors of static objects do not run: those of LibTorch take a
/// third of the time that a process needs without doing anything (measured: 0.15 of 0.47 s). Builds with sanitizers end
/// by std::exit, because leaks are looked for at exit. Thread rule: the main thread, when no rank runs.
[[noreturn]] void end_process(int code);

/// Ends the process at once after flushing standard streams: no destructor and no exit handler runs. Thread rule: any
/// thread.
[[noreturn]] void flush_and_exit(int code);

}  // namespace accel
