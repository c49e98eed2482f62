// The call site is thread_local and not an argument because it crosses all layers between a public function and
// the backend that reads it. A rank issues its collectives on its own thread, so the thread identifies the rank.
#include "reference/rank_local/call_site.hpp"

#include <functional>
#include <mutex>
#include <set>

namespace accel {
namespace {

// Line 0 marks "no scope is open": the lines of files are counted from 1.
thread_local SourceLine thread_site;
thread_local std::string_view thread_library_call;

}  // namespace

const char* kept(const std::string& file) {
  static std::mutex mutex;
  static auto* const files = new std::set<std::string, std::less<>>;
  const std::lock_guard lock(mutex);
  return files->insert(file).first->c_str();
}

CallSite::CallSite(SourceLine where, std::string_view library_call) : is_outermost_(thread_site.line == 0) {
  if (!is_outermost_) return;
  thread_site = where;
  thread_library_call = library_call;
}

CallSite::~CallSite() {
  if (is_outermost_) forget();
}

SourceLine CallSite::current() { return thread_site; }
std::string_view CallSite::library_call() { return thread_library_call; }

// std::exit leaves a rank by longjmp (Note [Exit]), so the destructors that would reset the site do not run.
// Without this reset the next program on the thread would report the previous program's line.
void CallSite::forget() {
  thread_site = {};
  thread_library_call = {};
}

}  // namespace accel
