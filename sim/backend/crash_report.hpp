#pragma once

#include <memory>
#include <vector>

namespace accel::sim {

class World;

/// While it lives, a signal that ends the process, such as a segmentation fault, is reported with the rank of this
/// thread, its step and its last call. The signal then ends the process as without it.
///
/// Signals that have another handler already, for example that of a sanitizer, keep it. Thread rule: the rank's thread.
class CrashScope {
 public:
  CrashScope(World& world, int rank);
  ~CrashScope();
  CrashScope(const CrashScope&) = delete;
  CrashScope& operator=(const CrashScope&) = delete;

 private:
  // The handler cannot run on the stack of the rank if that has overflowed.
  std::vector<char> stack_;
};

}  // namespace accel::sim
