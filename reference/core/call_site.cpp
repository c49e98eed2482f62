#include "reference/core/call_site.hpp"

namespace accel {
namespace {

thread_local std::source_location thread_site;

}  // namespace

CallSite::CallSite(std::source_location where) : is_outermost_(thread_site.line() == 0) {
  if (is_outermost_) thread_site = where;
}

CallSite::~CallSite() {
  if (is_outermost_) thread_site = {};
}

std::source_location CallSite::current() { return thread_site; }

void CallSite::forget() { thread_site = {}; }

}  // namespace accel
