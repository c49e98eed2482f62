#pragma once

#include <functional>

namespace accel {

/// How a rank's program ended.
struct ProgramEnd {
  int code = 0;
  bool by_exit = false;  ///< it called std::exit, so that nothing on its stack was destroyed
};

/// Runs `program` on a thread that stands for a process: std::exit in it, on this thread, ends the call and not the
/// process.
///
/// As in a process, objects on the thread's stack are not destroyed then. std::exit on a thread that `program` has
/// started ends the process, with a message, after flushing standard streams and without destructors, which would take
/// away what other ranks use. Thread rule: any thread; calls on several threads at once are what it is for.
ProgramEnd run_until_exit(const std::function<int()>& program);

}  // namespace accel
