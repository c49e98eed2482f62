#pragma once

namespace accel::predict {

/// The text of configs/sim/hardware.yaml.
extern const char* const kShippedHardware;

}  // namespace accel::predict
