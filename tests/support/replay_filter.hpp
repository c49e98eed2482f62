#pragma once

namespace accel::testing {

/// Restricts GoogleTest to the test that ACCEL_PROPERTY_REPLAY names; a token begins with the name of its test (see
/// replay_token.hpp). Without the variable all tests run.
void run_only_replayed_test();

}  // namespace accel::testing
