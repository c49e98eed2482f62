#pragma once

#include <string>

namespace accel {

/// The fields of a process or thread from its state on, see proc(5): "S 1 2 ...". "" if it has ended. `folder`: that of
/// the task, such as /proc/12/task/13. Thread rule: any thread.
std::string task_stat(const std::string& folder);

}  // namespace accel
