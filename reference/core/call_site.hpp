#pragma once

#include <source_location>

namespace accel {

/// The line of the program from which the library was entered on this thread, so that a diagnosis can name it. The
/// outermost scope counts: what one public function calls of another has the program's line too.
///
///     void barrier(std::source_location where = std::source_location::current()) { const CallSite site(where); ... }
///
/// Thread rule: a scope belongs to its thread.
class CallSite {
 public:
  explicit CallSite(std::source_location where);
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  /// Line 0 outside every scope.
  static std::source_location current();
  /// Ends this thread's scopes, whose frames are gone.
  static void forget();

 private:
  bool is_outermost_;
};

}  // namespace accel
