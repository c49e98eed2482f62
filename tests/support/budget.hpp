#pragma once

namespace accel::testing {

/// Number of generated cases of a property: `normal`, or ten times as many under `./dev test --long`.
int num_cases(int normal);

}  // namespace accel::testing
