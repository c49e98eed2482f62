// The entry point of libFuzzer for one target, which ACCEL_FUZZ_TARGET names at compile time.
#include <algorithm>

#include "properties/fuzz/targets.hpp"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const auto& target = [&]() -> const accel::testing::FuzzTarget& {
    const auto& targets = accel::testing::fuzz_targets();
    return *std::find_if(targets.begin(), targets.end(),
                         [](const auto& candidate) { return candidate.name == ACCEL_FUZZ_TARGET; });
  }();
  target.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
