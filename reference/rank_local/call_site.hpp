#pragma once

#include <cstdint>
#include <source_location>
#include <string>
#include <string_view>

namespace accel {

/// A line of a program, in any language.
struct SourceLine {
  const char* file = "";   // lives as long as the process
  std::uint32_t line = 0;  // 0: unknown

  SourceLine() = default;
  SourceLine(const char* file, std::uint32_t line) : file(file), line(line) {}
  SourceLine(const std::source_location& where) : file(where.file_name()), line(where.line()) {}  // NOLINT: converts
};

/// A copy of a file's name that lives as long as the process, for a line that comes from elsewhere.
const char* kept(const std::string& file);

/// Records the line of the user's program that entered the library on this thread, so that a hang report can name it,
/// and what it called, so that ranks that call different functions are found even if these make equal collectives.
/// Only the outermost scope counts: a public function that calls another keeps the program's line and call.
///
///     void barrier(std::source_location where = std::source_location::current()) { const CallSite site(where); ... }
///
/// Thread rule: a scope belongs to the thread that created it.
class CallSite {
 public:
  /// `library_call`: the public function and its arguments that must be equal on all ranks, as in "reduce(mean)". It
  /// lives as long as the scope.
  explicit CallSite(SourceLine where, std::string_view library_call = {});
  ~CallSite();
  CallSite(const CallSite&) = delete;
  CallSite& operator=(const CallSite&) = delete;

  /// Returns the recorded line; its line number is 0 if no scope is open on this thread.
  static SourceLine current();
  /// The recorded library call; "" if the program has called none.
  static std::string_view library_call();
  /// Closes all scopes of this thread. For use after their stack frames were skipped by longjmp.
  static void forget();

 private:
  bool is_outermost_;
};

}  // namespace accel
