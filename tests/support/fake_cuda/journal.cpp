#include "tests/support/fake_cuda/journal.hpp"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>

#include "tests/support/fake_cuda/export.hpp"

namespace accel::testing::fake_cuda {
namespace {

// Never destroyed: LibTorch's threads and static destructors still call the runtime while the process ends.
struct Counters {
  std::atomic<std::int64_t> launches = 0, host_waits = 0, pageable_copies = 0, device_to_host = 0, collectives = 0,
                            device_bytes = 0;
};
Counters& counters() {
  static auto* const all = new Counters;
  return *all;
}

std::string variable(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

Counts counts() {
  const auto& all = counters();
  return {all.launches, all.host_waits, all.pageable_copies, all.device_to_host, all.collectives, all.device_bytes};
}

void count_launch() { ++counters().launches; }
void count_host_wait() { ++counters().host_waits; }
void count_copy(bool is_pageable, bool is_device_to_host) {
  if (is_pageable) ++counters().pageable_copies;
  if (is_device_to_host) ++counters().device_to_host;
}
void count_collective() { ++counters().collectives; }
void count_bytes(std::int64_t change) { counters().device_bytes += change; }

void log(const std::string& line) {
  static const auto folder = variable("FAKE_CUDA_LOG");
  if (folder.empty()) return;
  static std::FILE* const file = std::fopen((folder + "/" + variable("RANK") + ".log").c_str(), "a");
  if (file == nullptr) return;
  std::fputs((line + "\n").c_str(), file);
  std::fflush(file);
}

bool is_faulty(const std::string& name, std::int64_t call) {
  std::istringstream faults(variable("FAKE_CUDA_FAULTS"));
  const auto here = "@" + variable("RANK");
  for (std::string fault; std::getline(faults, fault, ',');) {
    const auto wanted = name + "=" + std::to_string(call);
    if (fault == wanted || fault == wanted + here) return true;
  }
  return false;
}

std::int64_t setting(const char* name, std::int64_t otherwise) {
  const auto text = variable(name);
  return text.empty() ? otherwise : std::strtoll(text.c_str(), nullptr, 10);
}

}  // namespace accel::testing::fake_cuda

FAKE_CUDA_EXPORT void accel_fake_cuda_counts(accel::testing::fake_cuda::Counts* counts) {
  *counts = accel::testing::fake_cuda::counts();
}
