#pragma once

/// A device in plain C++, on which code for GPUs is tested without one: its numbers are the CPU's, and it reports work
/// that streams do not order, waits of the host, and copies from memory that is not pinned.
///
///     accel::testing::run_ranks(accel::testing::Backend::kSim, 2, [](accel::RankContext& rank) {
///       const accel::testing::fake_device::DeviceScope on_device(rank);
///       train();  // an Accelerator of this rank uses rank.device
///     });
///     EXPECT_TRUE(accel::testing::fake_device::races().races().empty());
///
/// It takes LibTorch's device type PrivateUse1, which it names "fake". Link accel::testing of find_package(accel
/// COMPONENTS testing).
#include "tests/support/fake_device/collectives.hpp"
#include "tests/support/fake_device/device.hpp"
#include "tests/support/fake_device/race_detector.hpp"
