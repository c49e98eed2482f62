// The entry point of libFuzzer for one target, which ACCEL_FUZZ_TARGET names at compile time.
#include <algorithm>
#include <vector>

#include "properties/fuzz/targets.hpp"

// By default the address sanitizer keeps 256 MB of freed memory, which would reach the limit in every long run.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16"; }

// Slow and large inputs are findings. Flags of the command line follow and take precedence.
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static char time[] = "-timeout=1", memory[] = "-rss_limit_mb=512";
  static std::vector<char*> arguments(*argv, *argv + *argc);
  arguments.insert(arguments.begin() + 1, {time, memory});
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  static const auto& target = [&]() -> const accel::testing::FuzzTarget& {
    const auto& targets = accel::testing::fuzz_targets();
    return *std::find_if(targets.begin(), targets.end(),
                         [](const auto& candidate) { return candidate.name == ACCEL_FUZZ_TARGET; });
  }();
  target.run({reinterpret_cast<const char*>(data), size});
  return 0;
}
