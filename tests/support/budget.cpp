// The budget is an environment variable, because ctest passes no options to the tests that it runs.
#include "tests/support/budget.hpp"

#include <cstdlib>
#include <string>

namespace accel::testing {

int num_cases(int normal) {
  const char* budget = std::getenv("ACCEL_TEST_BUDGET");
  return budget != nullptr && std::string(budget) == "long" ? 10 * normal : normal;
}

}  // namespace accel::testing
