// Not in main.cpp: a library's object that instantiates std::string is linked into every program, for the sake of these
// instantiations, and programs with their own main must not get a second one.
#include "tests/support/replay_filter.hpp"

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace accel::testing {

void run_only_replayed_test() {
  const char* const token = std::getenv("ACCEL_PROPERTY_REPLAY");
  if (token == nullptr) return;
  const std::string text = token;
  GTEST_FLAG_SET(filter, text.substr(0, text.find_first_of(":#")));
}

}  // namespace accel::testing
